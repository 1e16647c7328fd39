"""A pipeline that documents a Python repository: from its git history to a pull request, in a folder.

    runstone pipeline run examples/docs_pipeline/pipeline.py

`pipeline.py` says what is done in which state; every other module is one noun of it. The work itself knows
nothing of runs: it takes values and gives values, and the pipeline makes artifacts of them.
"""

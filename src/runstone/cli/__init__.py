"""The command line: one module per group of verbs, loaded when it is called."""

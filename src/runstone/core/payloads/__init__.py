"""The payloads: one typed, documented struct per type of event, one module per aggregate."""

from runstone.core.payloads.base import *  # noqa: F403
from runstone.core.payloads.effects import *  # noqa: F403
from runstone.core.payloads.entities import *  # noqa: F403
from runstone.core.payloads.pipeline import *  # noqa: F403
from runstone.core.payloads.runs import *  # noqa: F403
from runstone.core.payloads.schedules import *  # noqa: F403
from runstone.core.payloads.signals import *  # noqa: F403
from runstone.core.payloads.steps import *  # noqa: F403

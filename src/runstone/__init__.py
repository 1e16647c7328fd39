"""Runstone: a durable, event-sourced orchestration runtime for agents and workflows."""

from runstone.app import App
from runstone.core.effect_specs import (
    ApiCall,
    EffectSpec,
    NotifyUser,
    ScheduleTask,
    SendChatMessage,
    SendEmail,
    SorUpdate,
    WebhookCall,
)
from runstone.engine.context import Run
from runstone.engine.functions import Handler
from runstone.engine.policy import Retry, days, hours, minutes, seconds
from runstone.errors import (
    ControlRefused,
    RetryableError,
    RunCancelled,
    RunFailed,
    RunstoneError,
    SignalConflict,
    StepFailed,
    TerminalError,
    UseRunFirst,
    UseRunGather,
    WaitTimeout,
)
from runstone.handle import Handle
from runstone.ingest.signals import (
    ApiRequest,
    ChatMessage,
    Email,
    HumanCommand,
    ScheduledTask,
    SignalSpec,
    Webhook,
)

__version__ = "0.1.0"

__all__ = [
    "ApiCall",
    "ApiRequest",
    "App",
    "ChatMessage",
    "ControlRefused",
    "EffectSpec",
    "Email",
    "Handle",
    "Handler",
    "HumanCommand",
    "NotifyUser",
    "Retry",
    "RetryableError",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunstoneError",
    "ScheduleTask",
    "ScheduledTask",
    "SendChatMessage",
    "SendEmail",
    "SignalConflict",
    "SignalSpec",
    "SorUpdate",
    "StepFailed",
    "TerminalError",
    "UseRunFirst",
    "UseRunGather",
    "WaitTimeout",
    "Webhook",
    "WebhookCall",
    "days",
    "hours",
    "minutes",
    "seconds",
]

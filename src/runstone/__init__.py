"""Runstone: a durable, event-sourced orchestration runtime for agents and workflows."""

from runstone.app import App
from runstone.core.effect_specs import (
    ApiCall,
    EffectSpec,
    NotifyUser,
    ScheduleTask,
    SecretRef,
    SendChatMessage,
    SendEmail,
    SorUpdate,
    WebhookCall,
)
from runstone.core.retry import RetryPolicy
from runstone.engine.context import Run
from runstone.engine.current import CurrentStep, current_step
from runstone.engine.functions import Handler
from runstone.engine.policy import Retry, days, hours, minutes, seconds
from runstone.errors import (
    ControlRefused,
    EffectFailed,
    RetryableError,
    RunArchived,
    RunCancelled,
    RunFailed,
    RunstoneError,
    SignalConflict,
    StepFailed,
    TerminalError,
    TooManyControls,
    UseRunCall,
    UseRunFirst,
    UseRunGather,
    WaitTimeout,
)
from runstone.handle import Handle, Paused
from runstone.ingest.schedules import Schedule
from runstone.ingest.signals import (
    ApiRequest,
    Attachment,
    ChatMessage,
    Email,
    HumanCommand,
    MailHeaders,
    ScheduledTask,
    SignalSpec,
    Webhook,
)
from runstone.outbox.entities import Entity
from runstone.pipeline.declaration import Pipeline
from runstone.pipeline.graph import DOCS_GRAPH, Graph, IssuesOpen, State, docs_graph
from runstone.pipeline.items import Output
from runstone.pipeline.work import Reader, Work
from runstone.pipelines import open_pipelines
from runstone.ports.executor import EffectCall, Failed, Succeeded

__version__ = "0.1.0"

__all__ = [
    "DOCS_GRAPH",
    "ApiCall",
    "ApiRequest",
    "App",
    "Attachment",
    "ChatMessage",
    "ControlRefused",
    "CurrentStep",
    "EffectCall",
    "EffectFailed",
    "EffectSpec",
    "Email",
    "Entity",
    "Failed",
    "Graph",
    "Handle",
    "Handler",
    "HumanCommand",
    "IssuesOpen",
    "MailHeaders",
    "NotifyUser",
    "Output",
    "Paused",
    "Pipeline",
    "Reader",
    "Retry",
    "RetryPolicy",
    "RetryableError",
    "Run",
    "RunArchived",
    "RunCancelled",
    "RunFailed",
    "RunstoneError",
    "Schedule",
    "ScheduleTask",
    "ScheduledTask",
    "SecretRef",
    "SendChatMessage",
    "SendEmail",
    "SignalConflict",
    "SignalSpec",
    "SorUpdate",
    "State",
    "StepFailed",
    "Succeeded",
    "TerminalError",
    "TooManyControls",
    "UseRunCall",
    "UseRunFirst",
    "UseRunGather",
    "WaitTimeout",
    "Webhook",
    "WebhookCall",
    "Work",
    "current_step",
    "days",
    "docs_graph",
    "hours",
    "minutes",
    "open_pipelines",
    "seconds",
]

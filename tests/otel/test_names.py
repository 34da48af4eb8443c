# SPDX-License-Identifier: Apache-2.0
"""The names follow the conventions, and the extra installs all requirements."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry.semconv._incubating.attributes import code_attributes, messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas

from bmq.otel import names
from tests.sweeps import sweep

ATTRIBUTES = {
    "SYSTEM": messaging_attributes.MESSAGING_SYSTEM,
    "OPERATION_NAME": messaging_attributes.MESSAGING_OPERATION_NAME,
    "OPERATION_TYPE": messaging_attributes.MESSAGING_OPERATION_TYPE,
    "DESTINATION_NAME": messaging_attributes.MESSAGING_DESTINATION_NAME,
    "SUBSCRIPTION_NAME": messaging_attributes.MESSAGING_DESTINATION_SUBSCRIPTION_NAME,
    "CONSUMER_GROUP_NAME": messaging_attributes.MESSAGING_CONSUMER_GROUP_NAME,
    "MESSAGE_ID": messaging_attributes.MESSAGING_MESSAGE_ID,
    "BODY_SIZE": messaging_attributes.MESSAGING_MESSAGE_BODY_SIZE,
    "BATCH_MESSAGE_COUNT": messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT,
    "ERROR_TYPE": error_attributes.ERROR_TYPE,
    "FUNCTION_NAME": code_attributes.CODE_FUNCTION_NAME,
    "OPERATION_DURATION": messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION,
    "SENT_MESSAGES": messaging_metrics.MESSAGING_CLIENT_SENT_MESSAGES,
    "CONSUMED_MESSAGES": messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES,
    "PROCESS_DURATION": messaging_metrics.MESSAGING_PROCESS_DURATION,
    "SCHEMA_URL": Schemas.V1_44_0.value,
}


@sweep("name", ATTRIBUTES)
def test_names_are_those_of_the_conventions(name: str) -> None:
    assert getattr(names, name) == ATTRIBUTES[name]


def test_operations_have_types_of_the_conventions() -> None:
    known = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    assert set(names.OPERATIONS.values()) <= known


def test_only_the_api_is_needed() -> None:
    program = (
        "import sys, bmq.otel; bmq.otel.OpenTelemetry();"
        "parts = 'opentelemetry.sdk', 'opentelemetry.instrumentation';"
        "print([name for name in sys.modules if name.startswith(parts)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_import_without_the_api_names_the_package() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import bmq.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: bmq.otel needs opentelemetry-api, which is not installed: "
        "pip install 'bmq[otel]'"
    )

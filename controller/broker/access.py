"""The broker's accounts: for enrolment tokens, for devices, and to shut devices out.

Mosquitto's dynamic-security plugin takes commands on a control topic and answers on another; it
keeps the accounts in a file of its own, so they survive a restart of the broker.

Rules:
- What an account may do is in `controller.broker.rights`.
- Every call may be repeated: it changes an existing account or role to what was asked for.
- A call first tries to create, with at most two commands, because the plugin writes its whole file
  for each command. It changes what exists already in a second message.
- A device with a certificate has no account, so letting it in writes nothing. One that was shut out
  has an account without rights, which ends its connections and outlives a restart of the broker.
- A device never gets the account of the controller or of a token, whatever its name is.
- Passwords are never part of an error or a log line.
"""

from __future__ import annotations

import logging
import queue
import re
import secrets
import threading

import msgspec

from controller.broker.connection import connection
from controller.broker.errors import BrokerAccessError, BrokerAccountError
from controller.broker.rights import (
    ENROL_ROLE,
    SHUT_OUT_ROLE,
    Command,
    device_acls,
    device_role,
    enrol_acls,
    shut_out_acls,
)
from controller.config import ControllerConfig
from controller.ports import BrokerAccess
from wire import topics
from wire.clock import Clock, SystemClock
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.transport import Connection, Received, Transport

CONTROL_TOPIC = "$CONTROL/dynamic-security/v1"
RESPONSE_TOPIC = f"{CONTROL_TOPIC}/response"
CONTROLLER_USER = "_controller"
"""In a new directory. No device can have this name: identifiers begin with a letter or digit."""

TIMEOUT_S = 5.0
MAX_WAITING_ANSWERS = 64
MAX_CLIENTS = 200_000
CLIENTS_AT_ONCE = 200
"""With the longest names an answer has 80 KiB: far below what the controller takes at once."""

ENROL_USER = re.compile(r"enrol-[0-9a-f]{8}")
"""What `wire.enrolment.enrol_username` returns."""

EXISTS = frozenset({"Client already exists", "Role already exists"})
NOT_THERE = frozenset({"Client not found", "Role not found"})


class _Role(msgspec.Struct, frozen=True, kw_only=True):
    rolename: str


class _Client(msgspec.Struct, frozen=True, kw_only=True):
    username: str
    roles: tuple[_Role, ...] = ()


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    clients: tuple[_Client, ...] = ()


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    command: str
    error: str = ""
    correlation_data: str = ""
    data: _Data = _Data()


class _Answers(msgspec.Struct, frozen=True, kw_only=True):
    responses: tuple[_Answer, ...]


class MosquittoAccess:
    """Accounts at a Mosquitto with the dynamic-security plugin.

    Args:
        transport: A connection of its own, not yet started, as a user with the controller's role.
        own_user: The user of that connection; no device can have its name.
        timeout_s: How long to wait for a connection, and for an answer.
        clock: Source of time.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        own_user: str | None = CONTROLLER_USER,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._transport = transport
        self._own_user = own_user
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._one_at_a_time = threading.Lock()
        self._connected = threading.Event()
        self._last_word = Connection(up=False, reason="not connected yet")
        self._answers: queue.Queue[_Answers] = queue.Queue(MAX_WAITING_ANSWERS)
        transport.subscribe(RESPONSE_TOPIC)
        transport.start(self._on_message, self._on_connection)

    def allow_enrolment(self, username: str, password: str) -> None:
        """Let holders of a token ask to be enrolled; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused.
        """
        account = _account(username, password, ENROL_ROLE)
        # The role of a directory that an older version made allows more.
        role: Command = {"rolename": ENROL_ROLE, "acls": enrol_acls()}
        commands = [{"command": "modifyRole", **role}, {"command": "createClient", **account}]
        if _met_errors(self._ask(commands, tolerated=EXISTS)):
            self._ask(_modify(account))

    def end_enrolment(self, username: str) -> None:
        """Remove the account of a token; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused.
        """
        self._ask([{"command": "deleteClient", "username": username}], tolerated=NOT_THERE)

    def allow_device(self, device: str, password: str, client_id: str) -> None:
        """Let a device use its own topics; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused.
        """
        username = self._device_user(device)
        role: Command = {"rolename": device_role(device), "acls": device_acls(device)}
        # The account is bound to its client identifier: with another's, a device could end that
        # device's connection.
        account = _account(username, password, device_role(device)) | {"clientid": client_id}
        create = [{"command": "createRole", **role}, {"command": "createClient", **account}]
        if _met_errors(self._ask(create, tolerated=EXISTS)):
            self._ask([{"command": "modifyRole", **role}, *_modify(account)])

    def allow_certificate(self, device: str) -> None:
        """Let a device in by its certificate alone; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused.
        """
        username = self._device_user(device)
        # The plugin writes nothing for what is not there.
        remove = [
            {"command": "deleteClient", "username": username},
            {"command": "deleteRole", "rolename": device_role(device)},
        ]
        self._ask(remove, tolerated=NOT_THERE)

    def restore_device(self, device: str) -> None:
        """Enable a device's account again; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused, or there is no such account.
        """
        username, roles = self._device_user(device), [{"rolename": device_role(device)}]
        restore: list[Command] = [
            {"command": "modifyClient", "username": username, "roles": roles},
            {"command": "enableClient", "username": username},
        ]
        self._ask(restore)

    def refuse_device(self, device: str) -> None:
        """Shut a device out and end its connections; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused.
        """
        username, roles = self._device_user(device), [{"rolename": SHUT_OUT_ROLE}]
        create: list[Command] = [
            {"command": "createRole", "rolename": SHUT_OUT_ROLE, "acls": shut_out_acls()},
            {"command": "createClient", "username": username, "roles": roles},
        ]
        self._ask(create, tolerated=EXISTS)
        # An account that a password opens is disabled; the role concerns a certificate, too.
        shut: list[Command] = [
            {"command": "modifyClient", "username": username, "roles": roles},
            {"command": "disableClient", "username": username},
        ]
        self._ask(shut)

    def refused_devices(self) -> frozenset[str]:
        """Return which devices are shut out; see `controller.ports.BrokerAccess`.

        Raises:
            BrokerAccessError: No answer.
            BrokerAccountError: The broker refused.
        """
        found: set[str] = set()
        for offset in range(0, MAX_CLIENTS, CLIENTS_AT_ONCE):
            asked = {"verbose": True, "count": CLIENTS_AT_ONCE, "offset": offset}
            (answer,) = self._ask([{"command": "listClients", **asked}])
            found |= {
                client.username
                for client in answer.data.clients
                if any(role.rolename == SHUT_OUT_ROLE for role in client.roles)
            }
            if len(answer.data.clients) < CLIENTS_AT_ONCE:
                break
        return frozenset(found)

    def close(self) -> None:
        """Release the connection."""
        self._transport.close()

    def _device_user(self, device: str) -> str:
        """Return a device's user name, which must not be that of another account.

        Raises:
            BrokerAccountError: It is the controller's, or has the form of an enrolment account.
        """
        if device == self._own_user or ENROL_USER.fullmatch(device):
            raise BrokerAccountError(
                f"the identifier {device} is reserved for another account of the broker",
                remedy="give the device another identifier",
            )
        return topics.checked_device(device)

    def _ask(
        self, commands: list[Command], *, tolerated: frozenset[str] = frozenset()
    ) -> list[_Answer]:
        """Send commands; return the answers, some perhaps with tolerated errors.

        Raises:
            BrokerAccountError: The broker refused, for a reason that is not tolerated.
        """
        with self._one_at_a_time:
            answers = self._round_trip(commands)
        for answer in answers:
            if answer.error and answer.error not in tolerated:
                raise BrokerAccountError(
                    f"the broker refused {answer.command}: {answer.error.lower()}",
                    remedy="a device without an account must enrol again"
                    if answer.error in NOT_THERE
                    else "check the dynamic-security plugin's file and the controller's role",
                )
        return answers

    def _round_trip(self, commands: list[Command]) -> list[_Answer]:
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        if not self._connected.wait(self._timeout_s):
            raise self._no_connection()
        # Every subscriber gets every answer; the mark tells ours from those of other controllers.
        mark = secrets.token_hex(8)
        request = {"commands": [{**command, "correlationData": mark} for command in commands]}
        if not self._transport.publish(CONTROL_TOPIC, to_json(request)):
            raise self._no_connection()
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            try:
                batch = self._answers.get(timeout=left_s)
            except queue.Empty:
                break
            ours = [answer for answer in batch.responses if answer.correlation_data == mark]
            if len(ours) == len(commands):
                return ours
        raise BrokerAccessError(
            f"the broker's dynamic-security plugin gave no answer within {self._timeout_s:g} s",
            remedy=(
                "check that the broker runs with the plugin and that the controller has its role"
            ),
        )

    def _no_connection(self) -> BrokerAccessError:
        word = self._last_word
        if word.refused:
            return BrokerAccessError(
                "the broker refused the controller's own account",
                remedy="check the broker's user and password file in controller.toml",
            )
        return BrokerAccessError(
            f"the broker cannot be reached: {word.reason or 'connection lost'}",
            remedy="start it (fleet broker run DIR) or correct its address in controller.toml",
        )

    def _on_connection(self, connection: Connection) -> None:
        # After a refusal comes a disconnect without a reason, which must not hide the refusal.
        if connection.up or not self._last_word.refused:
            self._last_word = connection
        if connection.up:
            self._connected.set()
        else:
            self._connected.clear()

    def _on_message(self, received: Received) -> None:
        if received.topic != RESPONSE_TOPIC:
            return
        try:
            answers = from_json(received.payload, _Answers)
        except WireFormatError:
            return  # not an answer to us: ours can be decoded
        while True:
            try:
                self._answers.put_nowait(answers)
            except queue.Full:
                self._drop_oldest()
            else:
                return

    def _drop_oldest(self) -> None:
        try:
            self._answers.get_nowait()
        except queue.Empty:
            return


def _met_errors(answers: list[_Answer]) -> bool:
    return any(answer.error for answer in answers)


class OpenAccess:
    """For a broker whose accounts are managed elsewhere: does nothing, and logs that once."""

    def __init__(self) -> None:
        logging.getLogger(__name__).warning(
            "the broker's accounts are managed elsewhere: enrolment, quarantine and decommission "
            "change nothing there"
        )

    def allow_enrolment(self, username: str, password: str) -> None:
        """Do nothing."""

    def end_enrolment(self, username: str) -> None:
        """Do nothing."""

    def allow_device(self, device: str, password: str, client_id: str) -> None:
        """Do nothing."""

    def allow_certificate(self, device: str) -> None:
        """Do nothing."""

    def restore_device(self, device: str) -> None:
        """Do nothing."""

    def refuse_device(self, device: str) -> None:
        """Do nothing."""

    def refused_devices(self) -> frozenset[str]:
        """Know of none."""
        return frozenset()

    def close(self) -> None:
        """Do nothing."""


def access_for(config: ControllerConfig) -> BrokerAccess:
    """Return the access that the settings name.

    Args:
        config: The controller's settings.

    Returns:
        A Mosquitto's accounts over a connection of their own, or `OpenAccess`.
    """
    if config.access == "open":
        return OpenAccess()
    return MosquittoAccess(connection(config), own_user=config.broker.user)


def _account(username: str, password: str, role: str) -> Command:
    return {"username": username, "password": password, "roles": [{"rolename": role}]}


def _modify(account: Command) -> list[Command]:
    return [
        {"command": "modifyClient", **account},
        {"command": "enableClient", "username": account["username"]},
    ]

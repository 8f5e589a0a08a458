"""What the accounts and the certificates of the broker's clients allow. Pure.

Rules:
- Who logs in with a password has a role in the dynamic-security plugin, with its topics written
  out: the plugin of Mosquitto 2.0 accepts `%u` in a role but never matches it.
- A device that shows a certificate has no account. Its rights are patterns over the name in the
  certificate, the same for all devices: enrolling one writes nothing at the broker.
- Mosquitto asks the plugin first, and the patterns only about what no role decides. The patterns
  never forbid a subscription, and they let every name use topics of a device of that name; so each
  role forbids what it does not allow.
- A device that is shut out has an account with a role that forbids everything. So the plugin
  answers for it, whatever it shows.
"""

from __future__ import annotations

from typing import Any

from wire import topics

CONTROLLER_ROLE = "controller"
ENROL_ROLE = "enrol"
SHUT_OUT_ROLE = "shut-out"
EVERYTHING = "#"
LAST = -1
"""The priority of what holds where nothing else does."""

_ANY = "any-device"
_KINDS = ("publishClientSend", "publishClientReceive", "subscribePattern")

Command = dict[str, Any]


def device_role(device: str) -> str:
    """Return the name of a device's own role."""
    return f"device-{topics.checked_device(device)}"


def device_acls(device: str) -> list[Command]:
    """Return what a device may do: publish its kinds of messages, receive on its `down` topics.

    It may subscribe to all of these at once: the broker keeps each filter, and a filter may have
    64 KiB. Beside that it may only listen to casts, each by its name, which it cannot guess. A role
    with the names of all casts would bound that better, but the plugin ends the connections of all
    that have a role which changes.
    """
    own = [acl for kind in topics.UP_KINDS for acl in _may_publish(topics.up(device, kind))]
    down = topics.all_down(device)
    return [
        *own,
        _acl("publishClientReceive", down),
        _acl("subscribeLiteral", down),
        *_may_hear_by_name(topics.CASTS),
        *_nothing_else(),
    ]


def enrol_acls() -> list[Command]:
    """Return what holders of a token may do: ask, and hear the answer to a device that they name.

    They may not hear all answers at once: whoever has `trust.json` can log in, and leave sessions
    for which the broker would keep each answer. Devices with certificates listen here to casts,
    each by its name, as the patterns of certificates cannot forbid a subscription to all.
    """
    return [
        *_may_publish(topics.ENROL_REQUESTS),
        *_may_hear_by_name(topics.ENROL_REPLIES),
        *_may_hear_by_name(topics.CASTS),
        *_nothing_else(),
    ]


def shut_out_acls() -> list[Command]:
    """Return what a device may do that was shut out: nothing, with a certificate neither."""
    return [_acl(kind, EVERYTHING) | {"allow": False} for kind in _KINDS]


def certificate_patterns() -> str:
    """Return the content of Mosquitto's `acl_file`: what a device with a certificate may do.

    The same as `device_acls`, except that it may subscribe to anything, of which it receives what
    is its own. Casts it hears on another connection: see `enrol_acls`.
    """
    writes = [f"pattern write {_of_user(topics.up(_ANY, kind))}" for kind in topics.UP_KINDS]
    return "\n".join([*writes, f"pattern read {_of_user(topics.all_down(_ANY))}", ""])


def first_accounts(controller: Command) -> Command:
    """Return the content of a new `dynamic-security.json`.

    Args:
        controller: The controller's own client: `username`, and its hashed password.

    Returns:
        One client with the controller's role; the plugin denies everything that no role allows.
    """
    return {
        "clients": [{**controller, "roles": [{"rolename": CONTROLLER_ROLE}]}],
        "roles": [
            {
                "rolename": CONTROLLER_ROLE,
                "acls": [
                    acl
                    for pattern in (f"{topics.PREFIX}/#", "$CONTROL/dynamic-security/#")
                    for acl in (*_may_publish(pattern), *_may_hear(pattern))
                ]
                # Several controllers share the work; the plugin compares the whole filter.
                + [_acl("subscribePattern", f"$share/+/{topics.PREFIX}/#")],
            },
            {"rolename": ENROL_ROLE, "acls": enrol_acls()},
        ],
        "defaultACLAccess": {
            "publishClientSend": False,
            "publishClientReceive": False,
            "subscribe": False,
            "unsubscribe": True,
        },
    }


def _of_user(topic: str) -> str:
    """Return a topic of the device `_ANY` with Mosquitto's sign for who logged in in its place."""
    return topic.replace(f"/{_ANY}/", "/%u/")


def _nothing_else() -> list[Command]:
    return [_acl(kind, EVERYTHING) | {"allow": False, "priority": LAST} for kind in _KINDS]


def _may_publish(pattern: str) -> list[Command]:
    return [_acl("publishClientSend", pattern)]


def _may_hear(pattern: str) -> list[Command]:
    return [_acl("publishClientReceive", pattern), _acl("subscribePattern", pattern)]


def _may_hear_by_name(pattern: str) -> list[Command]:
    """Allow what matches a pattern, but not the pattern itself."""
    # The plugin looks at literal filters first.
    return [*_may_hear(pattern), {**_acl("subscribeLiteral", pattern), "allow": False}]


def _acl(kind: str, pattern: str) -> Command:
    return {"acltype": kind, "topic": pattern, "allow": True}

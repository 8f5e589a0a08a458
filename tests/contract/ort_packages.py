"""ONNX Runtime's own loader of model packages, which its Python package does not offer.

Rules:
- The C functions are reached by their place in ONNX Runtime's tables, which are only ever appended
  to; before the release that has them there is no loader.
- What a call answers is copied before the next call.

Source:
    ONNX Runtime, onnxruntime/core/session/model_package/README.md ("C API surface": the order of
    the table that OrtApi::GetModelPackageApi returns) and
    https://onnxruntime.ai/docs/api/c/struct_ort_model_package_api.html (arguments). That
    GetModelPackageApi is the function of OrtApi at place 427 was found on release 1.31.0.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

import onnxruntime

API_VERSION = 31
_GET_ERROR_MESSAGE, _CREATE_ENV, _CREATE_SESSION_OPTIONS, _SESSION_GET_INPUT_COUNT = 2, 3, 10, 30
_RELEASE_ENV, _RELEASE_STATUS, _RELEASE_SESSION, _RELEASE_SESSION_OPTIONS = 92, 93, 95, 100
_GET_MODEL_PACKAGE_API = 427
(
    _CREATE_OPTIONS, _RELEASE_OPTIONS, _CREATE_CONTEXT, _RELEASE_CONTEXT, _GET_SCHEMA_VERSION,
    _GET_COMPONENT_COUNT, _GET_COMPONENT_NAMES, _GET_VARIANT_COUNT, _GET_VARIANT_NAMES,
    _GET_VARIANT_EP, _RESOLVE, _SELECT, _RELEASE_COMPONENT, _SELECTED_NAME, _SELECTED_FOLDER,
    _CREATE_SESSION,
) = range(16)  # fmt: skip


class OrtPackageError(Exception):
    """What ONNX Runtime says of a package that it refuses."""


class Loader:
    """ONNX Runtime's loader, with the execution providers that it takes when none is named."""

    def __init__(self) -> None:
        folder = Path(onnxruntime.__file__).parent / "capi"
        library = c.CDLL(str(next(folder.glob("libonnxruntime.so.*"))))
        library.OrtGetApiBase.restype = c.POINTER(c.c_void_p * 2)
        get_api = c.CFUNCTYPE(c.c_void_p, c.c_uint32)(library.OrtGetApiBase().contents[0])
        self._api = (c.c_void_p * (_GET_MODEL_PACKAGE_API + 1)).from_address(get_api(API_VERSION))
        table = c.CFUNCTYPE(c.c_void_p)(self._api[_GET_MODEL_PACKAGE_API] or 0)()
        self._packages = (c.c_void_p * 16).from_address(table)
        self._env, self._options, self._package_options = c.c_void_p(), c.c_void_p(), c.c_void_p()
        self._call(self._api[_CREATE_ENV], c.c_int(3), b"test", c.byref(self._env))
        self._call(self._api[_CREATE_SESSION_OPTIONS], c.byref(self._options))
        self._call(
            self._packages[_CREATE_OPTIONS],
            self._env, self._options, c.byref(self._package_options),
        )  # fmt: skip

    def close(self) -> None:
        _release(self._packages[_RELEASE_OPTIONS], self._package_options)
        _release(self._api[_RELEASE_SESSION_OPTIONS], self._options)
        _release(self._api[_RELEASE_ENV], self._env)

    def variants(self, package: Path, component: str) -> list[str]:
        """Open a package and return the names of a component's variants, in their order."""
        context = self._open(package)
        try:
            names, count = c.POINTER(c.c_char_p)(), c.c_size_t()
            self._call(
                self._packages[_GET_VARIANT_NAMES],
                context, component.encode(), c.byref(names), c.byref(count),
            )  # fmt: skip
            return [(names[i] or b"").decode() for i in range(count.value)]
        finally:
            _release(self._packages[_RELEASE_CONTEXT], context)

    def resolve(self, package: Path, reference: str) -> str:
        """Return the path of a reference that must exist."""
        context, path = self._open(package), c.c_char_p()
        try:
            self._call(
                self._packages[_RESOLVE], context, None, reference.encode(), c.c_int(1),
                c.byref(path),
            )  # fmt: skip
            return (path.value or b"").decode()
        finally:
            _release(self._packages[_RELEASE_CONTEXT], context)

    def load(self, package: Path, component: str) -> tuple[str, int]:
        """Let ONNX Runtime choose a variant and load it; return its name and count of inputs."""
        context, chosen, session = self._open(package), c.c_void_p(), c.c_void_p()
        try:
            self._call(
                self._packages[_SELECT], context, component.encode(), self._package_options,
                c.byref(chosen),
            )  # fmt: skip
            name, count = c.c_char_p(), c.c_size_t()
            self._call(self._packages[_SELECTED_NAME], chosen, c.byref(name))
            self._call(self._packages[_CREATE_SESSION], self._env, chosen, None, c.byref(session))
            self._call(self._api[_SESSION_GET_INPUT_COUNT], session, c.byref(count))
            return (name.value or b"").decode(), count.value
        finally:
            _release(self._api[_RELEASE_SESSION], session)
            _release(self._packages[_RELEASE_COMPONENT], chosen)
            _release(self._packages[_RELEASE_CONTEXT], context)

    def _open(self, package: Path) -> c.c_void_p:
        context = c.c_void_p()
        self._call(self._packages[_CREATE_CONTEXT], str(package).encode(), c.byref(context))
        return context

    def _call(self, function: int | None, *arguments: Any) -> None:
        kinds = [c.c_int if isinstance(one, c.c_int) else c.c_void_p for one in arguments]
        status = c.CFUNCTYPE(c.c_void_p, *kinds)(function or 0)(*arguments)
        if status:
            get_message = c.CFUNCTYPE(c.c_char_p, c.c_void_p)(self._api[_GET_ERROR_MESSAGE] or 0)
            message = (get_message(status) or b"").decode()
            _release(self._api[_RELEASE_STATUS], c.c_void_p(status))
            raise OrtPackageError(message)


def _release(function: int | None, handle: c.c_void_p) -> None:
    if handle.value:
        c.CFUNCTYPE(None, c.c_void_p)(function or 0)(handle)

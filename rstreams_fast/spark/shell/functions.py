"""Loads the user's function by its name, and adds the policy that the options describe."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstreams_fast.calls.functions import label_of
from rstreams_fast.calls.policy import Policy, PolicyFunction
from rstreams_fast.calls.settings import PolicySettings
from rstreams_fast.spark.shell.errors import CommandError, exception_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "check_arguments",
    "load_callable",
    "policy_of",
    "send_by_value",
    "send_files",
    "with_policy",
]


def load_callable(option: str, name: str) -> Callable[..., Any]:
    """Return the callable that ``name`` (``package.module:name``) refers to.

    Like ``python -m``, this also finds modules in the working directory. ``option`` names the
    command's option in errors.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise CommandError(f"{option} {name}: must be package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        thing: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise CommandError(f"{option} {name}: {exception_line(missing)}") from None
        raise CommandError(
            f"{option} {name}: there is no module {missing.name!r} in {here} or installed"
        ) from None
    except (Exception, SystemExit) as raised:  # the module may call sys.exit
        raise CommandError(f"{option} {name}: {exception_line(raised)}") from None
    for part in attribute.split("."):
        if not hasattr(thing, part):
            raise CommandError(f"{option} {name}: {module_name} has no {attribute!r}")
        thing = getattr(thing, part)
    if not callable(thing):
        raise CommandError(f"{option} {name}: is a {type(thing).__name__}, and no function")
    function: Callable[..., Any] = thing
    return function


def policy_of(fn: Callable[..., Any]) -> PolicySettings:
    """Return the settings of the function's policy; empty settings if it has no policy."""
    return fn.policy if isinstance(fn, PolicyFunction) else PolicySettings()


def with_policy(
    fn: Callable[..., Any], words: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[str]]:
    """Return ``fn`` with a policy from the arguments ``words``, and the names of ignored arguments.

    If the policy of ``fn`` has an argument already, the argument keeps its value, and the value in
    ``words`` is ignored.
    """
    own = policy_of(fn)
    every = {each.name: getattr(own, each.name) for each in fields(own)}
    kept = [word for word in words if every[word] is not None]
    every |= {word: value for word, value in words.items() if word not in kept}
    inner = fn.fn if isinstance(fn, PolicyFunction) else fn
    return Policy(**every)(inner), kept


def check_arguments(fn: Callable[..., Any], count: int, *, using: bool, lists: bool) -> None:
    """Raise an error if ``fn`` cannot be called with ``count`` keys.

    With ``using``, ``fn`` also gets a client. With ``lists``, ``fn`` gets one list of keys.
    """
    inner = fn.fn if isinstance(fn, PolicyFunction) else fn
    try:
        signature = inspect.signature(inner)
    except (TypeError, ValueError):
        # Some functions in C have no signature that could be checked.
        return
    count_given = int(using) + (1 if lists else count)
    try:
        signature.bind(*range(count_given))
    except TypeError:
        keys = "a list of keys" if lists else f"{count} key{'s' if count > 1 else ''}"
        client = "the client of --using and " if using else ""
        raise CommandError(
            f"--call: {label_of(fn)}{signature} does not take what it would get: {client}{keys}"
        ) from None


def send_by_value(fns: list[Callable[..., Any]]) -> None:
    """Make cloudpickle include the modules of ``fns`` in its pickles, for executors on other hosts.

    This includes only modules in the working directory. Other modules there, which these modules
    import, need ``--py-files``.
    """
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value

    for fn in fns:
        module = sys.modules.get(getattr(fn, "__module__", None) or type(fn).__module__)
        file = getattr(module, "__file__", None)
        if module is not None and file and Path(file).is_relative_to(Path.cwd()):
            register(module)


def send_files(spark: SparkSession, paths: Sequence[str]) -> None:
    """Send Python files and zip archives to the executors, so that they can import from them."""
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect has no SparkContext
        spark.addArtifacts(*paths, pyfile=True)
        return
    for path in paths:
        context.addPyFile(path)

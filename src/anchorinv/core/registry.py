"""Registries by name; the registry of methods, in which an entry has all facts of a method."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Entries by name, including former names; filled on first use.

    Other packages add theirs by an entry point of the group ``anchorinv.<plural>`` that names an entry, or a
    module that registers entries when it is imported.

    Parameters
    ----------
    noun : str
        Name of an entry in messages.
    builtin : sequence of str
        Modules that register the entries of this package.

    Examples
    --------
    >>> colours: Registry[str] = Registry("colour")
    >>> colours.register("grey", "#7F7F7F", former=("gray",))
    '#7F7F7F'
    >>> colours["gray"], colours.name_of("gray"), list(colours)
    ('#7F7F7F', 'grey', ['grey'])
    >>> colours["gery"]
    Traceback (most recent call last):
        ...
    LookupError: there is no colour 'gery'; did you mean 'grey'? Known are grey
    """

    def __init__(self, noun: str, builtin: Sequence[str] = ()) -> None:
        self.noun, self._modules = noun, tuple(builtin)
        self._entries: dict[str, T] = {}
        self._former: dict[str, str] = {}
        self._complete = self._filling = False

    def register(self, name: str, entry: T, *, former: Sequence[str] = ()) -> T:
        """Add an entry and return it.

        Parameters
        ----------
        name : str
            Its name in files and settings; must be free, or belong to the same entry.
        entry : object
            The entry.
        former : sequence of str, default=()
            Former names, still accepted.
        """
        if self._entries.get(name, entry) is not entry:
            raise ValueError(f"there is a {self.noun} {name!r} already; choose another name")
        self._entries[name] = entry
        self._former.update(dict.fromkeys(former, name))
        return entry

    def unregister(self, name: str) -> None:
        """Remove an entry, as in tests."""
        del self._entries[name]
        self._former = {old: new for old, new in self._former.items() if new != name}

    def name_of(self, name: str) -> str:
        """Return the present name for a former one; other names are unchanged."""
        self._fill()
        return self._former.get(name, name)

    def __getitem__(self, name: str) -> T:
        self._fill()
        try:
            return self._entries[self._former.get(name, name)]
        except (KeyError, TypeError):
            known = ", ".join(self._entries)
            near = difflib.get_close_matches(str(name), self._entries, n=1)
            meant = f"; did you mean {near[0]!r}? Known" if near else "; known"
            raise LookupError(f"there is no {self.noun} {name!r}{meant} are {known}") from None

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._entries or name in self._former

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        self._fill()
        return len(self._entries)

    def _fill(self) -> None:
        if self._complete or self._filling:  # modules may use the registry while it is being filled
            return
        self._filling = True
        try:
            for module in self._modules:
                import_module(module)
            for point in entry_points(group=f"anchorinv.{self.noun}s"):
                entry = point.load()
                if not isinstance(entry, ModuleType):
                    self.register(point.name, entry)
            self._complete = True
        finally:
            self._filling = False


F = TypeVar("F", bound=Callable[..., Any])

#: What a model file may contain of people, from nothing to recordings.
Keeps = Literal["none", "synthetic", "class statistics", "features of real samples", "real recordings"]

_NETWORK_HOLDS = ("It holds the network's weights, and the head's parameters of each class.",)
_NETWORK_FORGETS = (
    "its prototype, anchors and replay are gone, but weights that were trained or finetuned while it was "
    "known may keep traces."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpec:
    """A method with its facts.

    Parameters
    ----------
    name : str
        In settings, files and records.
    title : str
        In tables and figures.
    citation : str
        Its publication.
    build : callable
        ``build(base_spec, **options)`` returns the method, a :class:`anchorinv.core.recipe.Method`.
    look : (str, str)
        Colour and marker of its lines in figures, as matplotlib understands them; empty takes free ones.
    published : bool
        Whether it is of the paper or its appendix.
    head : str
        Kind of the head that classifies.
    memory : type
        A :class:`anchorinv.core.memory.Memory`, which defines the parts of the state in a file, and what they
        reveal about people.
    network : bool
        Whether a network is always trained.
    statistics : bool
        Whether only statistics of classes are kept of people.
    weighted : bool
        Whether samples may have weights, in the base session and later.
    holds : tuple of str
        Sentences on the content of its model files.
    forgetting : str
        What remains of a forgotten class.
    former : tuple of str
        Former names.

    Examples
    --------
    >>> spec = METHODS["nc-fscil"]
    >>> spec.title, spec.published, spec.keeps
    ('NC-FSCIL', True, 'features of real samples')
    """

    name: str
    title: str
    citation: str
    build: Callable[..., Any] = field(repr=False)
    look: tuple[str, str] = ("", "")
    published: bool = False
    head: str = "cosine"
    memory: Any = None
    network: bool = True
    statistics: bool = False
    weighted: bool = False
    holds: tuple[str, ...] = _NETWORK_HOLDS
    forgetting: str = _NETWORK_FORGETS
    former: tuple[str, ...] = ()

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that it takes."""
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = [p.name for p in inspect.signature(self.build).parameters.values() if p.kind in kinds]
        return frozenset(named[1:])

    @property
    def colour(self) -> str:
        """Colour of its lines in figures; "" for the next free one."""
        return self.look[0]

    @property
    def marker(self) -> str:
        """Marker of its points in figures; "" for the next free one."""
        return self.look[1]

    @property
    def finetunes(self) -> bool:
        """Whether it takes a number of finetuning steps."""
        return "adapt" in self.options

    @property
    def replays(self) -> bool:
        """Whether it finetunes new prototypes with replay of old classes."""
        return self.finetunes and "start" in self.options

    @property
    def keeps(self) -> Keeps:
        """What its model files contain of people."""
        kept: Keeps = "class statistics" if self.statistics else self.memory.keeps
        return kept

    @property
    def uses_anchors(self) -> bool:
        """Whether it keeps feature vectors of real samples."""
        return "anchors" in self.memory.stores and not self.memory.labels_only

    def make(self, base_spec: Any, offered: Mapping[str, Any]) -> Any:
        """Build the method with those of the options that it takes."""
        return self.build(base_spec, **{name: offered[name] for name in self.options & offered.keys()})


#: All methods by name: those of this package and those of others.
METHODS: Registry[MethodSpec] = Registry("method", ("anchorinv.core.catalogue",))


def method(name: str, **facts: Any) -> Callable[[F], F]:
    """Register the decorated function, ``(base_spec, **options) -> Method``, with its facts.

    Parameters
    ----------
    name : str
        In settings, files and records.
    **facts
        The fields of :class:`MethodSpec`.
    """

    def decorate(build: F) -> F:
        spec = MethodSpec(name=name, build=build, **facts)
        METHODS.register(name, spec, former=spec.former)
        return build

    return decorate

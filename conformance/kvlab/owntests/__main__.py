"""Run an engine's own tests twice, without kvspec and with `check:halt`, and compare each test.

    python -m kvlab.owntests vllm==0.33.0 [--keep DIR] [TEST ...]

The exit status is 1 if a test that passes without kvspec does not pass with it, or makes a finding, and is not listed.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvlab.owntests.results import VARIABLE, Comparison, Outcome, Suite, read_tests
from kvlab.owntests.sources import KEPT, sources
from kvlab.releases import NotFetched, cache_folder, fetch
from kvlab.serving.environment import NoEnvironment, environment, search_path

HERE = Path(__file__).parent
LIMIT = 120
"""Seconds that one test may take."""

MODELS = ("facebook/opt-125m", "facebook/opt-350m")
"""Models that tests name, without weights."""
CONFIGURATION = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
    "torch_dtype": "float16",
}
"""The part of their configurations that vLLM reads."""

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "KVSPEC_STUBS": "ray,torchaudio,torchvision._meta_registrations",
}


def _say(text: str) -> None:
    print(f"kvspec: {text}", file=sys.stderr, flush=True)


def packages(pins: Path, python: Path) -> Path:
    """A folder with the packages that a file names. They are installed for an environment's Python the first time.

    Raises:
        NoEnvironment: pip could not install them.
    """
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:8]
    folder = cache_folder().with_name("servers") / f"tests-of-{pins.stem}-{digest}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*pip, "--target", f"{scratch}/packages", "-r", str(pins)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise NoEnvironment(f"pip could not install {pins.name}: {(done.stderr.splitlines() or [''])[-1]}")
            (Path(scratch) / "packages").rename(folder)
    return folder


def prepared(engine: str, version: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """The Python of the tests, and the environment in which they run below `folder`.

    Raises:
        NoEnvironment: something that the tests need cannot be installed.
    """
    python = environment(engine, _say)
    try:
        release = fetch(version, None, engine)
    except NotFetched as error:
        raise NoEnvironment(str(error)) from error
    tree, further = sources(engine, version, _say), packages(HERE / f"{engine}.txt", python)
    for name in KEPT:
        (folder / name).symlink_to(tree / name)
    for name in MODELS:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_bytes(msgspec.json.encode(CONFIGURATION))
    path = os.pathsep.join([search_path(folder, release), str(further), str(folder)])
    return python, {**os.environ, **SETTINGS, "PYTHONPATH": path}


def run_tests(
    python: Path, environment: dict[str, str], folder: Path, name: str, hooked: bool, chosen: Sequence[str]
) -> dict[str, Outcome]:
    """Run tests, and read their outcomes; `name` is the name of the run's files."""
    results = folder / f"{name}.jsonl"
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:kvspec", "-p", "no:randomly"]
    command += [
        "--continue-on-collection-errors",
        "-p",
        "kvlab.owntests.plugin",
        f"--timeout={LIMIT}",
        "--rootdir",
        str(folder),
        *chosen,
    ]
    if hooked:
        command = [sys.executable, "-m", "kvcli", "attach", "--halt-on-error", "--", *command]
    with (folder / f"{name}.log").open("wb") as log:
        subprocess.run(
            command,
            env={**environment, VARIABLE: str(results)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    return read_tests(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare and print. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvlab.owntests")
    parser.add_argument("release", metavar="ENGINE==VERSION")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and results in DIR, a new folder")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="files and tests, instead of all of the engine's")
    given = parser.parse_intermixed_args(arguments)
    engine, _, version = given.release.partition("==")
    with tempfile.TemporaryDirectory(prefix="kvspec-own-tests-") as scratch:
        folder = (given.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=given.keep is None)
        suite = msgspec.toml.decode((HERE / f"{engine}.toml").read_bytes(), type=Suite)
        try:
            python, settings = prepared(engine, version, folder)
        except NoEnvironment as error:
            _say(str(error))
            return 2
        chosen = given.tests or suite.tests
        _say("running them without kvspec")
        without = run_tests(python, settings, folder, "without", False, chosen)
        _say("running them with each event checked at once")
        beside = run_tests(python, settings, folder, "with", True, chosen)
        compared = Comparison(suite, without, beside)
        if given.tests:
            compared.stale = []
    print("\n".join(compared.lines()))
    return int(bool(compared.wrong or compared.stale or not compared.passed))


if __name__ == "__main__":
    raise SystemExit(main())

"""Dockerfiles that need no build are followed; all others are refused, with the line."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from hermes_rl.backends.ssh_dockerfile import ImageRecipe, recipe_of
from hermes_rl.errors import ImageBuildFailed, Unsupported
from hermes_rl.sandbox import SandboxSpec


async def read(context: Path, dockerfile: str) -> ImageRecipe:
    (context / "Dockerfile").write_text(dockerfile)
    spec = SandboxSpec(dockerfile_dir=context)
    recipe = await recipe_of(spec, threads=anyio.CapacityLimiter(1), backend="ssh")
    assert recipe is not None
    return recipe


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in ("a", "b", "tree/c", "tree/deep/d"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


async def test_a_spec_without_an_image_has_no_recipe(tmp_path: Path) -> None:
    threads = anyio.CapacityLimiter(1)
    assert await recipe_of(SandboxSpec(), threads=threads, backend="ssh") is None
    named = await recipe_of(SandboxSpec(image="x"), threads=threads, backend="ssh")
    assert named == ImageRecipe(image="x")
    with pytest.raises(ImageBuildFailed, match="holds no Dockerfile"):
        await recipe_of(SandboxSpec(dockerfile_dir=tmp_path), threads=threads, backend="ssh")


async def test_image_workdir_and_environment_are_read(context: Path) -> None:
    text = """
    # a comment
    from debian:12
    WORKDIR /app
    WORKDIR sub/../other
    ENV A=1 B="two words" \\
        C=3
    ENV OLD old style
    LABEL maintainer="$ANYBODY"
    CMD ["sh", "-c", "echo $HOME"]
    """
    recipe = await read(context, text)
    assert (recipe.image, recipe.workdir) == ("debian:12", "/app/other")
    assert recipe.env == {"A": "1", "B": "two words", "C": "3", "OLD": "old style"}
    assert recipe.directories == ["/app", "/app/other"]
    spec = recipe.completed(SandboxSpec(env={"A": "mine"}))
    assert (spec.env["A"], spec.env["C"]) == ("mine", "3")


@pytest.mark.parametrize(
    ("line", "copied"),
    [
        ("COPY a /x", {"/x": "a"}),
        ("COPY a /x/", {"/x/a": "a"}),
        ("COPY a .", {"/w/a": "a"}),
        ("COPY a /w", {"/w/a": "a"}),
        ("COPY a b dir/", {"/w/dir/a": "a", "/w/dir/b": "b"}),
        ("COPY tree /t", {"/t/c": "tree/c", "/t/deep/d": "tree/deep/d"}),
        ('COPY ["a", "/with space"]', {"/with space": "a"}),
        ("ADD tree/c ../c", {"/c": "tree/c"}),
    ],
)
async def test_files_go_where_docker_puts_them(
    context: Path, line: str, copied: dict[str, str]
) -> None:
    recipe = await read(context, f"FROM x\nWORKDIR /w\n{line}\n")
    assert recipe.copies == {place: context / name for place, name in copied.items()}


@pytest.mark.parametrize(
    "line",
    [
        "RUN true",
        "USER nobody",
        "ARG x",
        "FROM other",
        "FROM --platform=linux/arm64 x",
        "COPY --chown=1:1 a /x",
        "COPY a /$HOME",
        "COPY t* /x",
        "COPY missing /x",
        "COPY a",
        'COPY "a /x',
        "COPY [a /x",
        "COPY a relative",
        "WORKDIR relative",
        "ADD http://127.0.0.1/x /x",
        "ADD a.tar.gz /x",
        "ENV",
        "NONSENSE",
    ],
)
async def test_what_needs_a_build_is_refused_by_its_line(context: Path, line: str) -> None:
    with pytest.raises(Unsupported) as caught:
        await read(context, f"FROM x\n{line}\n")
    assert line in str(caught.value)
    assert str(context / "Dockerfile") in str(caught.value)


async def test_a_file_without_an_image_is_refused(context: Path) -> None:
    with pytest.raises(Unsupported, match="no FROM"):
        await read(context, "# nothing\n")

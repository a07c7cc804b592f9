"""No patch gets past the checks by changing them, or what they run on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.tools import protected, weakened, with_checks_from
from kokuban.blackboard.workspace import File, Tree

UNITTEST = ("python -m unittest discover -s tests -q",)
PYTEST = ("cd . && python -m pytest -q tests",)


def tree(*paths: str, **texts: str) -> dict[str, File]:
    return {path: File(b"old") for path in paths} | {path: File(text.encode()) for path, text in texts.items()}


def put(base: Tree, path: str, text: str | None) -> dict[str, File]:
    rest = {name: file for name, file in base.items() if name != path}
    return rest if text is None else {**rest, path: File(text.encode())}


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("tests/test_a.py", UNITTEST),
        ("tests/data/expected.json", UNITTEST),
        ("pkg/test/helper.py", UNITTEST),
        ("Tests/x.py", UNITTEST),
        ("test_a.py", UNITTEST),
        ("pkg/test_a.py", ()),
        ("pkg/a_test.go", ("go test ./...",)),
        ("web/a.test.ts", ("npm test",)),
        ("web/a.spec.js", ("npm test",)),
        ("web/__tests__/a.js", ("npm test",)),
        ("src/FooTest.java", ("mvn test",)),
        ("conftest.py", PYTEST),
        ("pytest.ini", PYTEST),
        ("tox.ini", PYTEST),
        ("setup.cfg", PYTEST),
        ("noxfile.py", ("nox",)),
        ("jest.config.js", ("npm test",)),
        ("Makefile", ("make test",)),
        ("sub/GNUmakefile", ("make -C sub",)),
        ("mypy.ini", ("mypy app",)),
        ("ruff.toml", ("python -m ruff check .",)),
        ("checks.sh", ("sh checks.sh",)),
        ("checks.sh", ("./checks.sh fast",)),
        ("tools/check.py", ("python tools/check.py --all",)),
        ("tools/check.py", ("cd tools && python check.py",)),
        ("tools/check.py", ("python -m tools.check",)),
        ("checks/__main__.py", ("python -m checks",)),
        ("run_all", ("./run_all",)),
        ("run_all", ("sh run_all",)),
        ("x.sh", ("bash x.sh",)),
        ("x.py", ("./x.py",)),
        ("tools/Validate.py", ("python3.12 tools/Validate.py",)),
        ("tools/RunTests.js", ("node tools/RunTests.js",)),
        ("ci.rb", ("ruby ci.rb",)),
        ("LINT.PY", ("env A=1 python LINT.PY",)),
        ("api_spec.yaml.py", ("uv run api_spec.yaml.py",)),
        ("do.verify.pl", ("perl -w do.verify.pl",)),
        ("asserts.php", ("php asserts.php app.php",)),
        ("cases.mjs", ("node --test cases.mjs",)),
        ("cases.ts", ("deno test cases.ts",)),
        ("cases.py", ("pytest cases.py",)),
        ("cases.py", ("python -m unittest cases",)),
        ("cases.py", ("python -m coverage run -m pytest cases.py",)),
        ("verify/cases.py", ("python -m unittest verify.cases.Case.test_x",)),
        ("verify/cases.py", ("pytest verify/cases.py::test_x",)),
        ("verify/cases.py", ("timeout 60 env A=1 bash -c 'pytest -q verify/cases.py | tail'",)),
        ("verify/cases.py", ("coverage run -m pytest verify/cases.py",)),
        ("plugin.py", ("pytest -p plugin -q",)),
        ("verify.cfg", ("runner --config=verify.cfg",)),
    ],
)
def test_existing_checks_may_be_neither_changed_nor_deleted(path: str, checks: tuple[str, ...]) -> None:
    base = tree(path, "app/main.py", "tests/test_x.py")
    assert path in protected(base, checks)
    for text in ("new", None):
        (reason,) = weakened(base, put(base, path, text), checks)
        assert path in reason
        assert with_checks_from(base, put(base, path, text), checks) == base
    (reason,) = weakened(base, {**base, path: File(b"old", executable=True)}, checks)
    assert path in reason


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("app/main.py", UNITTEST),
        ("latest.py", UNITTEST),
        ("app/contest.java", ("mvn test",)),
        ("app/attest.py", PYTEST),
        ("Makefile", PYTEST),
        ("app.py", ("mypy app.py", "python -m py_compile app.py", "ruff check app.py")),
        ("README.md", ("grep -q Usage README.md",)),
        ("app/main.py", ("pytest app", "python -m pytest --cov=app")),
        ("pyproject.toml", PYTEST),
        ("slow.py", ("pytest -m slow",)),
        ("app.py", ("python app.py",)),
        ("app.py", ("python -X dev app.py --verbose | grep -q hello",)),
        ("app.py", ("timeout 5 python3 ./app.py && uv run app.py",)),
        ("app.py", ("sh -c 'python app.py'", "coverage run app.py", "python -m coverage run app.py")),
        ("app.js", ("node app.js",)),
        ("app.ts", ("deno run app.ts", "tsx app.ts")),
        ("main.go", ("go run main.go",)),
        ("cli/__main__.py", ("python -m cli",)),
        ("cli/run.py", ("python -m cli.run",)),
        ("checkout.py", ("python checkout.py",)),
        ("latest/special.py", ("python latest/special.py",)),
        ("data.json", ("python app.py data.json", "python -m json.tool data.json")),
        ("docs/tests.md", PYTEST),
    ],
)
def test_the_code_under_test_may_be_changed(path: str, checks: tuple[str, ...]) -> None:
    base = tree(path, "tests/test_x.py")
    assert path not in protected(base, checks)
    text = "[project]\nname = 'x'\n" if path.endswith(".toml") else "new"
    base = put(base, path, "") if path.endswith(".toml") else base
    assert weakened(base, put(base, path, text), checks) == ()


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("conftest.py", PYTEST),
        ("tests/unit/conftest.py", PYTEST),
        ("pytest.ini", PYTEST),
        (".pytest.ini", PYTEST),
        ("tox.ini", PYTEST),
        ("sitecustomize.py", UNITTEST),
        ("src/usercustomize.py", UNITTEST),
        ("sitecustomize/__init__.py", UNITTEST),
        ("x.pth", UNITTEST),
        ("pytest.py", PYTEST),
        ("pytest/__init__.py", PYTEST),
        ("_pytest/__init__.py", PYTEST),
        ("unittest.py", UNITTEST),
        ("unittest/__init__.py", UNITTEST),
        ("Unittest.py", UNITTEST),  # the same file where case does not count
        ("argparse.py", UNITTEST),
        ("difflib.so", UNITTEST),
        ("json.cpython-311-x86_64-linux-gnu.so", UNITTEST),
        ("tests/traceback.py", UNITTEST),
        ("tools/re.py", ("python tools/check.py",)),
        ("pytest", ("./pytest -q", "pytest -q")),
        ("python.py", UNITTEST),
        ("sub/pytest", ("cd sub && pytest",)),
        ("tests/__init__.py", UNITTEST),
        ("Makefile", ("make test",)),
        ("GNUmakefile", ("make test",)),
        (".npmrc", ("npm test",)),
        ("jest.config.ts", ("npx jest",)),
        ("mypy.ini", ("mypy app",)),
    ],
)
def test_files_that_would_take_over_the_run_may_not_be_added(path: str, checks: tuple[str, ...]) -> None:
    base = tree("app/main.py", "tests/test_x.py", "tools/check.py", "sub/x")
    after = put(base, path, "import evil")
    (reason,) = weakened(base, after, checks)
    assert path in reason
    assert with_checks_from(base, after, checks) == base


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("tests/test_new.py", UNITTEST),
        ("tests/data/new.json", UNITTEST),
        ("test/test_new.py", ("test -d app && pytest",)),
        ("app/json.py", UNITTEST),  # inside a package nothing is shadowed
        ("app/__init__.py", UNITTEST),
        ("docs/unittest/guide.md", UNITTEST),
        ("hello.sh", ("./hello.sh",)),  # the check asks for it to be made
        ("main.py", ("python main.py",)),
        ("calc.py", ("python -m calc 1 2",)),
        ("python/readme.md", UNITTEST),
        ("setup.cfg", PYTEST),
        ("Makefile", PYTEST),
        (".npmrc", PYTEST),
    ],
)
def test_ordinary_files_and_tests_may_be_added(path: str, checks: tuple[str, ...]) -> None:
    base = tree("app/main.py", "tests/test_x.py")
    after = put(base, path, "new")
    assert weakened(base, after, checks) == ()
    assert with_checks_from(base, after, checks) == after


def test_an_empty_package_file_beside_tests_is_harmless() -> None:
    base = tree("tests/test_x.py")
    assert weakened(base, put(base, "tests/__init__.py", "\n"), UNITTEST) == ()


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ("[project]\nversion='1'\n", "[project]\nversion='2'\n", False),
        ("[tool.black]\nx=1\n", "[tool.black]\nx=2\n", False),
        ("[tool.pytest.ini_options]\naddopts='-q'\n", "[tool.pytest.ini_options]\naddopts = '-q' # same\n", False),
        ("[tool.pytest.ini_options]\naddopts='-q'\n", "[tool.pytest.ini_options]\naddopts='--co'\n", True),
        ("[tool.pytest.ini_options]\naddopts='-q'\n", "", True),
        ("", "[tool.pytest.ini_options]\naddopts='--co'\n", True),
        (None, "[tool.pytest.ini_options]\naddopts='--co'\n", True),
        (None, "[project]\nname='x'\n", False),
        ("[tool.pytest.ini_options]\naddopts='-q'\n", None, True),
        ("[project]\nname='x'\n", None, False),
        ("", "[tool.pytest-x]\na=1\n", True),
        ("[tool.coverage.report]\nfail_under=90\n", "[tool.coverage.report]\nfail_under=1\n", True),
        ("", "not toml [", True),
        ("not toml [", "[project]\n", False),
        ("[tool.mypy]\nstrict=true\n", "[tool.mypy]\nstrict=false\n", False),
    ],
)
def test_of_pyproject_only_the_tables_of_the_checks_are_guarded(
    before: str | None, after: str | None, refused: bool
) -> None:
    base = put({}, "pyproject.toml", before)
    assert bool(weakened(base, put(base, "pyproject.toml", after), PYTEST)) is refused


def test_settings_of_a_linter_count_when_a_check_runs_it() -> None:
    base = put({}, "pyproject.toml", "[tool.mypy]\nstrict=true\n")
    assert weakened(base, put(base, "pyproject.toml", ""), ("python -m mypy app",))


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ('{"version": "1"}', '{"version": "2"}', False),
        ('{"scripts": {"test": "jest"}}', '{"scripts": {"test": "true"}}', True),
        ('{"scripts": {"test": "jest"}}', '{"scripts": {}}', True),
        ('{"scripts": {"test": "jest"}}', '{"scripts": {"test": "jest", "build": "tsc"}}', False),
        ('{"scripts": {"test": "jest"}}', '{"scripts": {"test": "jest", "pretest": "x"}}', True),
        ('{"scripts": {"test": "jest"}}', '{"scripts": {"test": "jest", "preunit": "x"}}', True),
        ('{"jest": {"a": 1}}', '{"jest": {"a": 2}}', True),
        (None, '{"scripts": {"test": "true"}}', True),
        (None, '{"name": "x"}', False),
        ("{}", "{", True),
        ("{}", "[" * 50_000, True),
        ('{"scripts": {"test": "jest"}}', None, True),
    ],
)
def test_of_package_json_only_scripts_and_runners_are_guarded(
    before: str | None, after: str | None, refused: bool
) -> None:
    base = put({}, "package.json", before)
    assert bool(weakened(base, put(base, "package.json", after), ("npm test && npm run unit",))) is refused


def test_setup_cfg_may_be_added_but_not_with_settings_of_the_runner() -> None:
    assert weakened({}, put({}, "setup.cfg", "[metadata]\n"), PYTEST) == ()
    assert weakened({}, put({}, "setup.cfg", "[metadata]\n[tool:pytest]\naddopts=--co\n"), PYTEST)


def test_a_renamed_or_replaced_test_folder_is_refused_and_put_back() -> None:
    base = tree("tests/test_x.py", "app.py")
    renamed = tree("tests/renamed_x.py", "app.py")
    assert len(weakened(base, renamed, UNITTEST)) == 1
    assert with_checks_from(base, renamed, UNITTEST) == {**renamed, **base}
    replaced = tree("tests", "app.py")
    assert weakened(base, replaced, UNITTEST)
    assert with_checks_from(base, replaced, UNITTEST) == base
    file = tree("checks.sh", "app.py")
    folder = tree("checks.sh/x", "app.py")
    assert with_checks_from(file, folder, ("sh checks.sh",)) == file


def test_every_reason_is_given_and_a_clean_patch_has_none() -> None:
    base = tree("tests/test_x.py", "app.py")
    after = put(put(put(base, "tests/test_x.py", None), "conftest.py", ""), "app.py", "better")
    assert [reason.split()[0] for reason in weakened(base, after, UNITTEST)] == ["conftest.py", "tests/test_x.py"]
    assert weakened(base, base, UNITTEST) == ()


names = st.sampled_from(
    ["tests/test_a.py", "conftest.py", "app.py", "src/b.py", "pytest.py", "pyproject.toml", "tests/new.py"]
)
trees = st.dictionaries(names, st.builds(File, st.sampled_from([b"", b"x = 1", b"[tool.pytest]\na = 1"])))
lines = st.text(alphabet="pytest -c'\"|&;()$<>\\\n./m", max_size=30)


@given(trees, trees, lines)
def test_any_check_line_can_be_read_and_the_verifiers_tree_never_weakens(base: Tree, after: Tree, check: str) -> None:
    judged = with_checks_from(base, after, (check,))
    assert weakened(base, judged, (check,)) == ()
    if not weakened(base, after, (check,)):
        assert judged == after
    for path in protected(base, (check,)):
        assert judged[path] == base[path]

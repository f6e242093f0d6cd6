"""Tables of measurements: errors in a file come with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas")

from gradred import cli
from gradred.errors import UsageError
from gradred_lab.simulate import measured, tables, throughput
from gradred_lab.simulate.tables import Column

HEADING = "system,nodes,ranks,buffer,library,impl,algorithm,segment_bytes,bytes,median_us"
ROW = "there,8,8,host,MPI 1,mpi,ring,,1024,12.5"


def written(folder: Path, *lines: str) -> str:
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ((), "line 1: there is no heading"),
        (("a,b", "1,2"), "line 1, column system: the heading lacks it (it has a, b)"),
        ((f"{HEADING},bytes", f"{ROW},1"), "line 1, column bytes: two columns have this name"),
        ((HEADING,), "line 2: it has a heading and no measurement"),
        ((HEADING, ROW, f"{ROW},1"), "line 3, column 11: it has 11 fields, and the heading has 10"),
        ((HEADING, ROW[:-5]), "line 2, column 10: it has 9 fields, and the heading has 10"),
        ((HEADING, ROW.replace("MPI", '"\n"'), f"{ROW},1"), "line 4, column 11: it has 11 fields"),
        ((HEADING, ROW, ROW.rpartition(",")[0]), "line 3, column 10: it has 9 fields"),
        ((HEADING, ROW.replace(",,", ",64k,")), "line 2, column segment_bytes: it is '64k'"),
        ((HEADING, "", ROW.replace("8,8", "8,x")), "line 3, column ranks: it is 'x', no whole"),
        (
            (HEADING, ROW.replace("8,8", "8,10000001")),
            "line 2, column ranks: it is 10,000,001, and at most 10,000,000 can be predicted",
        ),
        ((HEADING, ROW.replace("8,8", "0,8")), "line 2, column nodes: it is '0', no whole number"),
        ((HEADING, ROW.replace("1024", "-1")), "line 2, column bytes: it is '-1', no whole number"),
        (
            (HEADING, ROW.replace("12.5", "nan")),
            "column median_us: it is 'nan', not a number above",
        ),
        ((HEADING, ROW.replace("12.5", "0")), "column median_us: it is '0', not a number above 0"),
        ((HEADING, ROW.replace("12.5", "")), "line 2, column median_us: it is empty"),
        ((HEADING, ROW.replace("there", "")), "line 2, column system: it is empty"),
        ((HEADING, ROW.replace("there", 'a"b"')[:3] + '"x'), "line 2, column 2: it has 1 fields"),
        ((HEADING.replace(",", ";"),), "Separate the fields of all lines by commas"),
        ((HEADING.replace(",", "\t"),), "Separate the fields of all lines by commas"),
        ((HEADING.upper(), ROW), "Write the names of columns in lower case"),
        ((HEADING, ROW, f'"{ROW}', ROW, ROW), "line 3: a field begins with a quotation mark"),
        ((HEADING, ROW, ROW.replace("8,8", "8,7")), "line 3, column ranks: it is 7, and nodes is"),
        (
            (f"{HEADING},p10_us", f"{ROW},12.6"),
            "line 2, column median_us: it is 12.5, and p10_us is 12.6. Give at least p10_us",
        ),
        ((f"{HEADING},p90_us", f"{ROW},12.4"), "line 2, column p90_us: it is 12.4, and median_us"),
    ],
)
def test_bad_tables_are_refused_with_file_line_and_column(
    tmp_path: Path, lines: tuple[str, ...], error: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(UsageError) as caught:
        measured.read_fit(path)
    assert str(caught.value).startswith(f"{path}, ")
    assert error in str(caught.value)


def test_tables_that_are_too_long_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, HEADING, *[ROW] * 10_001)
    with pytest.raises(UsageError, match="it has 10,001 rows, and at most 10,000 are read"):
        measured.read_fit(path)
    assert len(measured.read_rows(path)) == 10_001
    monkeypatch.setattr(tables, "MOST_BYTES", 0)
    with pytest.raises(UsageError, match="it has 0 MiB, and at most 0 are read"):
        measured.read_rows(path)


def test_file_that_is_no_text_or_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(f"{HEADING}\nthere\xff".encode("latin-1"))
    with pytest.raises(UsageError, match="line 2: byte 0xff is not UTF-8"):
        measured.read_fit(str(path))
    with pytest.raises(UsageError, match="it cannot be read"):
        measured.read_fit(str(tmp_path / "none.csv"))
    with pytest.raises(UsageError, match="it cannot be read"):
        measured.read_fit(str(tmp_path))


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b", '"two', 'lines",1', "x,y")
    with pytest.raises(UsageError, match="line 4, column b: it is 'y'"):
        tables.read(path, {"a": Column(tables.words), "b": Column(tables.count)})


def test_lines_end_where_a_table_program_ends_them(tmp_path: Path) -> None:
    row = ROW.replace("MPI 1", "MPI\x0b\u20281")  # not the end of a line in CSV
    for end in ("\n", "\r\n", "\r"):
        path = tmp_path / "table.csv"
        path.write_bytes(end.join([HEADING, row, ROW, ""]).encode())
        assert [one.library for one in measured.read_rows(str(path))] == ["MPI\x0b\u20281", "MPI 1"]


def test_rows_to_predict_need_no_times_and_other_columns_are_passed_over(tmp_path: Path) -> None:
    bare = HEADING.replace(",median_us", ",more")
    path = written(tmp_path, bare, ROW.replace("12.5", "anything"))
    (case,) = measured.read_rows(path)
    assert (case.nodes, case.bytes, case.run, case.note) == (8, 1024, "", "")
    path = written(tmp_path, HEADING, ROW.replace("12.5", ""), ROW.replace("12.5", "nonsense"))
    assert len(measured.read_rows(path)) == 2


def test_bad_table_of_training_is_refused_too(tmp_path: Path) -> None:
    heading = "cluster,model,batch,precision,network,scheduler,framework,gpus,nodes,images_per_s"
    path = written(tmp_path, heading, "c,ResNet-50,64,fp32,10 GbE,BSP,f,8,two,100")
    with pytest.raises(UsageError, match=r"line 2, column nodes: it is 'two', no whole number"):
        throughput.read_fit(path)
    path = written(tmp_path, heading, "c,ResNet-50,64,fp32,10 GbE,BSP,f,8,9,100")
    with pytest.raises(UsageError, match="line 2, column gpus: it is 8, and nodes is 9"):
        throughput.read_fit(path)
    with pytest.raises(UsageError, match="line 2, column gpus: it is 8, and nodes is 9"):
        throughput.read_rows(path)


@pytest.mark.parametrize("what", ["allreduce", "training"])
def test_command_ends_with_usage_and_names_the_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    path = written(tmp_path, "a,b", "1,2")
    words = ["simulate", what, "--calibrate", path, "--rows", path]
    assert cli.main(words) == cli.USAGE
    assert f"gradred simulate: {path}, line 1, column" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("allreduce --net 10GbE", "--net"),
        ("allreduce -np 4", "-np"),
        ("allreduce --plot out.svg", "--plot"),
        ("training --scheme bsp", "--scheme"),
        ("training --samples-per-s 4", "--samples-per-s"),
        ("training --plot out.svg", "--plot"),
    ],
)
def test_options_that_rows_have_no_use_for_are_refused(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(f"simulate {words} --calibrate fit.csv --rows rows.csv".split()) == cli.USAGE
    expected = f"{option} and --rows: rows are predicted from the measurements alone"
    assert expected in capsys.readouterr().err


def test_case_reads_ports_torus_and_day_from_its_columns(tmp_path: Path) -> None:
    heading = HEADING.replace("median_us", "run,note")
    row = ROW.replace("12.5", "2025_03_27___04_01_47,torus 2x4; 3 ports")
    (case,) = measured.read_rows(written(tmp_path, heading, row))
    assert (case.ports, case.torus) == (3, (2, 4))
    assert case.day is not None
    row = ROW.replace("12.5", "2025_13_99_x,")
    (case,) = measured.read_rows(written(tmp_path, heading, row))
    assert (case.ports, case.torus, case.day) == (1, (), None)

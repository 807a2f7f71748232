"""Data sets that users download: the files of each layout, and the clients and test set made of them."""

import gzip

import numpy as np
import pytest
import torch

from rqm.data.datasets import SOURCES, load, search_folders
from rqm.data.federated_data import dirichlet
from tests.data.files import PICTURES, WRITERS, archive, idx, mat, save_leaf, save_mat, save_parquet, save_tff


@pytest.fixture(autouse=True)
def without_the_users_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("RQM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_folders_are_searched_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_DATA", str(tmp_path / "named"))
    assert search_folders(tmp_path / "given") == [tmp_path / "given", tmp_path / "named", tmp_path / "cache" / "rqm"]
    with pytest.raises(ValueError, match=f"data = cifar: must be among glyphs, {', '.join(SOURCES)}"):
        load("cifar")
    (tmp_path / "named").mkdir()
    np.savez(tmp_path / "named" / "mnist-writers.npz", **archive())
    assert load("mnist-writers", tmp_path / "given").train.sizes.tolist() == [6] * 6 + [5]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "femnist",
            [
                *("fed_emnist_train.h5 with fed_emnist_test.h5", "TensorFlow Federated's fed_emnist.tar.bz2"),
                *("femnist/train/*.json with femnist/test/*.json", "LEAF's repository"),
                *("femnist/train-*.parquet", "femnist/data/train-*.parquet", "flwrlabs/femnist on Hugging Face"),
            ],
        ),
        (
            "emnist-byclass",
            [
                "matlab/emnist-byclass.mat (",
                "as emnist-byclass.mat (",
                "emnist-byclass-test-labels-idx1-ubyte*",
                "NIST's",
            ],
        ),
        (
            "mnist",
            ["train-images-idx3-ubyte* with train-labels-idx1-ubyte*", "t10k-labels-idx1-ubyte", "LeCun"],
        ),
        ("mnist-writers", ["mnist-writers.npz", "QMNIST", "writers and is_test"]),
        ("emnist-byclass-test", ["emnist-byclass-test.npz", "EMNIST ByClass", "pseudo_writers"]),
    ],
)
def test_a_missing_set_says_what_to_bring(name, words, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path / "given")
    places = [str(tmp_path / "given"), str(tmp_path / "cache" / "rqm")]
    for word in (f"data = {name}: ", *words, *places, "--data DIR or $RQM_DATA"):
        assert word in str(caught.value)


OTHERS = {"f0009_00": (PICTURES[:1], [9]), "f0001_41": (PICTURES[1:3], [8, 7])}


def check_femnist(data):
    """Train clients are those of WRITERS, sorted by name; the test set is OTHERS."""
    assert (data.name, data.classes, len(data.train)) == ("femnist", 62, 2)
    for client, name in enumerate(sorted(WRITERS)):
        images, labels = data.train[client]
        assert (images.numpy() == WRITERS[name][0]).all()
        assert labels.tolist() == WRITERS[name][1]
    assert sorted(data.test_labels.tolist()) == [7, 8, 9]
    for label, picture in ((9, PICTURES[0]), (8, PICTURES[1]), (7, PICTURES[2])):
        assert (data.test_inputs[data.test_labels == label].numpy() == picture).all()
    assert data.test_labels.dtype == data.train.labels.dtype == torch.int64


def save_femnist_tff(folder):
    save_tff(folder / "fed_emnist_train.h5")
    save_tff(folder / "fed_emnist_test.h5", OTHERS)


def test_femnist_of_tff(tmp_path):
    save_femnist_tff(tmp_path)
    check_femnist(load("femnist", tmp_path))


def test_femnist_of_leaf_with_a_writer_in_two_files(tmp_path):
    (one, (first, labels)), (two, rest) = WRITERS.items()
    save_leaf(tmp_path / "femnist" / "train" / "all_data_0.json", {one: (first[:1], labels[:1])})
    save_leaf(tmp_path / "femnist" / "train" / "all_data_1.json", {two: rest, one: (first[1:], labels[1:])})
    for i, (name, part) in enumerate(OTHERS.items()):
        save_leaf(tmp_path / "femnist" / "test" / f"all_data_{i}.json", {name: part})
    check_femnist(load("femnist", tmp_path))


@pytest.mark.parametrize("under", ["femnist", "femnist/data"])
def test_femnist_of_hugging_face_holds_out_a_tenth(under, tmp_path):
    writers = ["c", "a", "b"] + ["a", "b"] * 9 + ["b"] * 1
    pictures = np.random.default_rng(1).integers(0, 256, size=(len(writers), 28, 28), dtype=np.uint8)
    rows = list(zip(pictures, writers, range(len(writers)), strict=True))
    save_parquet(tmp_path / under / "train-00000-of-00002.parquet", rows[:9])
    save_parquet(tmp_path / under / "train-00001-of-00002.parquet", rows[9:])
    data = load("femnist", tmp_path)
    a, b = ([label for _, writer, label in rows if writer == name] for name in "ab")
    assert (len(a), len(b)) == (10, 11)
    assert [data.train[i][1].tolist() for i in range(len(data.train))] == [
        a[:-1],
        b[:-2],
    ]  # c's one picture is held out
    assert sorted(data.test_labels.tolist()) == sorted([0, a[-1], *b[-2:]])
    assert (data.train.inputs.numpy() == pictures[data.train.labels.numpy()]).all()
    assert (data.test_inputs.numpy() == pictures[data.test_labels.numpy()]).all()


def test_femnist_of_hugging_face_with_nothing_to_train_on(tmp_path):
    save_parquet(tmp_path / "femnist" / "train-0.parquet", [(PICTURES[0], "a", 1), (PICTURES[1], "b", 1)])
    with pytest.raises(ValueError, match=r"train-0\.parquet: holds no pictures to train on"):
        load("femnist", tmp_path)


def test_layouts_are_tried_in_order_and_only_when_complete(tmp_path, monkeypatch):
    given, named = tmp_path / "given", tmp_path / "named"
    save_parquet(given / "femnist" / "train-0.parquet", [(PICTURES[0], "a", 5)] * 2)
    named.mkdir()
    save_femnist_tff(named)
    monkeypatch.setenv("RQM_DATA", str(named))
    (given / "fed_emnist_train.h5").write_bytes(b"without its test part: not looked at")
    assert load("femnist", given).test_labels.tolist() == [5]  # the first folder, though a later one has TFF's files
    save_femnist_tff(given)
    check_femnist(load("femnist", given))


def test_labels_of_femnist_are_checked(tmp_path):
    tff, leaf, shards = (tmp_path / name for name in ("tff", "leaf", "shards"))
    tff.mkdir()
    save_tff(tff / "fed_emnist_train.h5")
    save_tff(tff / "fed_emnist_test.h5", {"w": (PICTURES[:1], [-1])})
    save_leaf(leaf / "femnist" / "train" / "0.json", {"w": (PICTURES[:1], [62])})
    save_leaf(leaf / "femnist" / "test" / "0.json")
    save_parquet(shards / "femnist" / "train-0.parquet", [(PICTURES[0], "w", 99)] * 2)
    for folder, words in (
        (tff, r"fed_emnist_test\.h5: holds the label -1: must lie in 0\.\.61"),
        (leaf, r"0\.json: holds the label 62"),
        (shards, r"train-0\.parquet: holds the label 99"),
    ):
        with pytest.raises(ValueError, match=words):
            load("femnist", folder)


@pytest.mark.parametrize("file", ["matlab/emnist-byclass.mat", "emnist-byclass.mat"])
def test_emnist_byclass_with_writers(file, tmp_path):
    train = mat(PICTURES[:5], [1, 2, 3, 4, 61], [9, 4, 9, 4, 4])
    save_mat(tmp_path / file, train=train, test=mat(PICTURES[5:], [5, 6], [4, 7]))
    data = load("emnist-byclass", tmp_path)
    assert (data.name, data.classes, data.train.sizes.tolist()) == ("emnist-byclass", 62, [3, 2])
    assert (data.train[0][0].numpy() == PICTURES[[1, 3, 4]]).all()
    assert data.train[1][1].tolist() == [1, 3]
    assert (data.test_inputs.numpy() == PICTURES[5:]).all()
    assert data.test_labels.tolist() == [5, 6]
    save_mat(tmp_path / file, train=train, test=mat(PICTURES[5:], [5, 62], [4, 7]))
    with pytest.raises(ValueError, match=r"emnist-byclass\.mat: holds the label 62"):
        load("emnist-byclass", tmp_path)


def save_idx(folder, prefixes, train, classes):
    """Training pictures that carry their number in two bytes, and three test pictures; return the labels."""
    pictures = np.zeros((train, 28, 28), dtype=np.uint8)
    pictures[:, 0, 1], pictures[:, 0, 2] = np.divmod(np.arange(train), 256)
    labels = (np.arange(train) * 7 % classes).astype(np.uint8)
    a, b = prefixes
    (folder / f"{a}-images-idx3-ubyte").write_bytes(idx(pictures))
    (folder / f"{a}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    (folder / f"{b}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(PICTURES[:3])))
    (folder / f"{b}-labels-idx1-ubyte").write_bytes(idx(np.array([0, 1, classes - 1], dtype=np.uint8)))
    return labels


EMNIST = ("emnist-byclass-train", "emnist-byclass-test")
MNIST = ("train", "t10k")


@pytest.mark.parametrize(
    ("name", "prefixes", "clients", "classes"), [("emnist-byclass", EMNIST, 3400, 62), ("mnist", MNIST, 1000, 10)]
)
def test_sets_without_writers_are_dealt_out(name, prefixes, clients, classes, tmp_path):
    labels = save_idx(tmp_path, prefixes, clients + 200, classes)
    data = load(name, tmp_path)
    assert (data.name, data.classes, len(data.train)) == (name, classes, clients)
    turned = data.train.inputs.mT if name == "emnist-byclass" else data.train.inputs
    number = 256 * turned[:, 0, 1].numpy().astype(int) + turned[:, 0, 2].numpy()
    assert sorted(number) == list(range(clients + 200))
    assert (data.train.labels.numpy() == labels[number]).all()
    owner = np.repeat(np.arange(clients), data.train.sizes)
    assert (dirichlet(labels, clients, 1.0, 0)[number] == owner).all()
    test = PICTURES[:3].transpose(0, 2, 1) if name == "emnist-byclass" else PICTURES[:3]
    assert (data.test_inputs.numpy() == test).all()
    assert data.test_labels.tolist() == [0, 1, classes - 1]


@pytest.mark.parametrize(
    ("file", "array", "words"),
    [
        ("train-images-idx3-ubyte", np.zeros((1000, 28, 27)), r"train-images-idx3-ubyte: has shape \(1000, 28, 27\)"),
        ("train-images-idx3-ubyte", np.zeros((999, 28, 28)), r"with n labels in train-labels-idx1-ubyte\.gz, .*1000"),
        ("t10k-labels-idx1-ubyte", np.array([0, 1, 10]), "t10k-labels-idx1-ubyte: holds the label 10"),
        ("t10k-labels-idx1-ubyte", np.zeros((3, 1)), r"t10k-images-idx3-ubyte\.gz: .* \(3, 1\)"),
    ],
)
def test_idx_files_that_do_not_fit_together(file, array, words, tmp_path):
    save_idx(tmp_path, MNIST, 1000, 10)
    (tmp_path / file).write_bytes(idx(array.astype(np.uint8)))
    with pytest.raises(ValueError, match=words):
        load("mnist", tmp_path)


def test_too_few_pictures_for_the_clients(tmp_path):
    save_idx(tmp_path, MNIST, 999, 10)
    with pytest.raises(ValueError, match="train-images-idx3-ubyte: holds 999 pictures: must be at least 1000"):
        load("mnist", tmp_path)

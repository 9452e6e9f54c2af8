//! The data sets that can be fetched by name: their official addresses, their terms of use, and the
//! sizes and checksums of their files.
//!
//! Sizes and MD5 sums are those published by the authors or in common loaders. MD5 does not protect
//! against a forged file; the SHA-256 sums, on which many independent loaders agree, do, also where a
//! source has no TLS. Only the small sample ([`crate::sample`]) is distributed with
//! the program, as its licence allows.

use crate::{DataError, Result};

/// One official file of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name at the official address. Files ending in `.tar.gz` are unpacked.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its MD5 sum in lower-case hexadecimal, as its authors publish it.
    pub md5: &'static str,
    /// Its SHA-256 sum.
    pub sha256: &'static str,
}

/// One data set that can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its name on the command line; also the name of its folder.
    pub name: &'static str,
    /// Its content, in one line.
    pub about: &'static str,
    /// The terms of use, in a few words.
    pub terms: &'static str,
    /// The authors' web page.
    pub page: &'static str,
    /// The official address of the files, without their names and the last slash.
    pub base_url: &'static str,
    /// The files to download; together the whole data set.
    pub files: &'static [File],
    /// Other official archives, each the whole data set in one file: accepted as a local copy,
    /// because many people have one already.
    pub also: &'static [File],
}

impl Entry {
    /// Bytes to download.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The official addresses of the files to download.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|file| format!("{}/{}", self.base_url, file.name))
    }
}

/// All data sets that can be fetched by name.
pub fn entries() -> &'static [Entry] {
    ENTRIES
}

/// The data set with this name, or an error that lists the known names.
pub fn find(name: &str) -> Result<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name).ok_or_else(|| {
        if name == crate::sample::NAME {
            let problem = "the data set `sample` is part of the program and needs no download";
            return DataError::Unusable(problem.to_owned());
        }
        let known: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        DataError::Unusable(format!(
            "unknown data set `{name}`: expected one of {}",
            known.join(", ")
        ))
    })
}

const CIFAR_TERMS: &str = "no licence stated; free for research, cite Krizhevsky 2009";

static ENTRIES: &[Entry] = &[
    Entry {
        name: "cifar10",
        about: "60,000 colour photographs, 32x32, 10 classes of animals and vehicles",
        terms: CIFAR_TERMS,
        page: "https://www.cs.toronto.edu/~kriz/cifar.html",
        base_url: "https://www.cs.toronto.edu/~kriz",
        files: &[File {
            name: "cifar-10-binary.tar.gz",
            bytes: 170_052_171,
            md5: "c32a1d4ab5d03f1284b67883e8d87530",
            sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        }],
        also: &[File {
            name: "cifar-10-python.tar.gz",
            bytes: 170_498_071,
            md5: "c58f30108f718f92721af3b95e74349a",
            sha256: "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        }],
    },
    Entry {
        name: "cifar100",
        about: "60,000 colour photographs, 32x32, 100 classes of things, animals and plants",
        terms: CIFAR_TERMS,
        page: "https://www.cs.toronto.edu/~kriz/cifar.html",
        base_url: "https://www.cs.toronto.edu/~kriz",
        files: &[File {
            name: "cifar-100-binary.tar.gz",
            bytes: 168_513_733,
            md5: "03b5dce01913d631647c71ecec9e9cb8",
            sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        }],
        also: &[File {
            name: "cifar-100-python.tar.gz",
            bytes: 169_001_437,
            md5: "eb9058c3a382ffc7106e4002c42a8d85",
            sha256: "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        }],
    },
    Entry {
        name: "svhn",
        about: "99,289 colour images of house numbers, 32x32, 10 classes (without the extra part)",
        terms: "non-commercial use only, cite Netzer et al. 2011",
        page: "http://ufldl.stanford.edu/housenumbers/",
        base_url: "http://ufldl.stanford.edu/housenumbers",
        files: &[
            File {
                name: "train_32x32.mat",
                bytes: 182_040_794,
                md5: "e26dedcc434d2e4c54c9b2d4a06d8373",
                sha256: "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            },
            File {
                name: "test_32x32.mat",
                bytes: 64_275_384,
                md5: "eb5a983be6a315427106f1b164d9cef3",
                sha256: "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            },
        ],
        also: &[],
    },
    Entry {
        name: "mnist",
        about: "70,000 grey images of handwritten digits, 28x28, 10 classes",
        terms: "CC BY-SA 3.0, cite LeCun et al. 1998",
        page: "http://yann.lecun.com/exdb/mnist/",
        base_url: "https://ossci-datasets.s3.amazonaws.com/mnist",
        files: &[
            File {
                name: "train-images-idx3-ubyte.gz",
                bytes: 9_912_422,
                md5: "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                sha256: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            },
            File {
                name: "train-labels-idx1-ubyte.gz",
                bytes: 28_881,
                md5: "d53e105ee54ea40749a09fcbcd1e9432",
                sha256: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            },
            File {
                name: "t10k-images-idx3-ubyte.gz",
                bytes: 1_648_877,
                md5: "9fb629c4189551a2d022fa330f9573f3",
                sha256: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            },
            File {
                name: "t10k-labels-idx1-ubyte.gz",
                bytes: 4_542,
                md5: "ec29112dd5afa0611ce80d1b7f02629c",
                sha256: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
        ],
        also: &[],
    },
    Entry {
        name: "fashion-mnist",
        about: "70,000 grey images of clothing, 28x28, 10 classes",
        terms: "MIT licence, Zalando SE",
        page: "https://github.com/zalandoresearch/fashion-mnist",
        base_url: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        files: &[
            File {
                name: "train-images-idx3-ubyte.gz",
                bytes: 26_421_880,
                md5: "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                sha256: "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            },
            File {
                name: "train-labels-idx1-ubyte.gz",
                bytes: 29_515,
                md5: "25c81989df183df01b3e8a0aad5dffbe",
                sha256: "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            },
            File {
                name: "t10k-images-idx3-ubyte.gz",
                bytes: 4_422_102,
                md5: "bef4ecab320f06d8554ea6380940ec79",
                sha256: "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            },
            File {
                name: "t10k-labels-idx1-ubyte.gz",
                bytes: 5_148,
                md5: "bb300cfdad3c16e7a12a480ee83cd310",
                sha256: "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
        ],
        also: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_well_formed() {
        for entry in entries() {
            assert_eq!(find(entry.name).unwrap(), entry);
            assert!(!entry.files.is_empty() && !entry.base_url.ends_with('/'));
            for file in entry.files.iter().chain(entry.also) {
                let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                assert!(file.md5.len() == 32 && file.md5.chars().all(hex), "{}", file.name);
                assert!(file.sha256.len() == 64 && file.sha256.chars().all(hex), "{}", file.name);
                assert!(!file.name.contains(['/', '\\']));
            }
        }
    }

    #[test]
    fn addresses_are_the_official_ones() {
        let urls: Vec<String> = find("cifar10").unwrap().urls().collect();
        assert_eq!(urls, ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]);
        assert_eq!(find("svhn").unwrap().bytes(), 246_316_178);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert_eq!(
            find("cifar").unwrap_err().to_string(),
            "unknown data set `cifar`: expected one of cifar10, cifar100, svhn, mnist, \
             fashion-mnist"
        );
    }
}

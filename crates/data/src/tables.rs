//! Tables as CSV.

use crate::{DataError, Result};
use std::fmt::Write;
use std::path::Path;

/// Writes how many samples of each class every client holds ([`crate::Partition::histogram`]): `client,size,<class names...>`.
pub fn histogram_csv(histogram: &[Vec<u32>], classes: &[String], path: &Path) -> Result<()> {
    let mut table = String::from("client,size");
    for name in classes {
        table.push(',');
        table.push_str(&quoted(name));
    }
    table.push('\n');
    for (client, counts) in histogram.iter().enumerate() {
        let size: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        write!(table, "{client},{size}").expect("writing to a string cannot fail");
        for count in counts {
            write!(table, ",{count}").expect("writing to a string cannot fail");
        }
        table.push('\n');
    }
    std::fs::write(path, table).map_err(|error| DataError::io(path, error))
}

/// A name as a field of a CSV file.
pub fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_line_per_client() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("histogram.csv");
        let classes = ["cat".into(), "dog, \"big\"".into()];
        histogram_csv(&[vec![3, 4], vec![0, 1]], &classes, &path).unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "client,size,cat,\"dog, \"\"big\"\"\"\n0,7,3,4\n1,1,0,1\n"
        );
    }
}

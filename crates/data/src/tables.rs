//! Tables as CSV.

use std::fmt::Write;

/// How many samples of each class every client holds ([`crate::Partition::histogram`]) as CSV: `client,size,<class
/// names...>`.
pub fn histogram_table(histogram: &[Vec<u32>], classes: &[String]) -> String {
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
    table
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
        let classes = ["cat".into(), "dog, \"big\"".into()];
        assert_eq!(
            histogram_table(&[vec![3, 4], vec![0, 1]], &classes),
            "client,size,cat,\"dog, \"\"big\"\"\"\n0,7,3,4\n1,1,0,1\n"
        );
    }
}

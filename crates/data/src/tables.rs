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

/// A name as a field of a CSV file for people, who open it in a spreadsheet: a name that begins like a formula gets an
/// apostrophe before it, which [`from_cell`] removes.
pub fn cell(name: &str) -> String {
    if is_formula(name) { quoted(&format!("'{name}")) } else { quoted(name) }
}

/// The name in a field that [`cell`] wrote, or a person.
pub fn from_cell(field: &str) -> &str {
    match field.strip_prefix('\'') {
        Some(name) if is_formula(name) => name,
        _ => field,
    }
}

/// Whether a spreadsheet may take a name for a formula. Apostrophes before it count too, so that a name which has its own
/// is read back as it was.
fn is_formula(name: &str) -> bool {
    name.trim_start_matches('\'').starts_with(['=', '+', '-', '@', '\t', '\r', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_a_formula_and_every_name_is_read_back() {
        for (name, field) in [
            ("=1+1", "'=1+1"),
            ("+a", "'+a"),
            ("-a", "'-a"),
            ("@a", "'@a"),
            ("\ta", "'\ta"),
            ("\ra", "\"'\ra\""),
            ("'=a", "''=a"),
            ("=a,b", "\"'=a,b\""),
            ("'t Hooft", "'t Hooft"),
            ("'", "'"),
            ("cat", "cat"),
            ("", ""),
        ] {
            assert_eq!(cell(name), field);
            let text = format!("name\n{field},\n");
            let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
            let record = reader.records().next().unwrap().unwrap();
            assert_eq!(from_cell(&record[0]), name);
        }
    }

    #[test]
    fn the_table_has_one_line_per_client() {
        let classes = ["cat".into(), "dog, \"big\"".into()];
        assert_eq!(
            histogram_table(&[vec![3, 4], vec![0, 1]], &classes),
            "client,size,cat,\"dog, \"\"big\"\"\"\n0,7,3,4\n1,1,0,1\n"
        );
    }
}

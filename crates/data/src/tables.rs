//! Tables as CSV.

/// Rows as CSV text, quoted where necessary.
pub fn csv<Row>(rows: impl IntoIterator<Item = Row>) -> String
where
    Row: IntoIterator<Item: AsRef<[u8]>>,
{
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).expect("writing to memory cannot fail");
    }
    let bytes = writer.into_inner().expect("writing to memory cannot fail");
    String::from_utf8(bytes).expect("fields are text")
}

/// Samples per class and client ([`crate::Partition::histogram`]) as CSV: `client,size,<class names...>`. A client is
/// named by its number if there are no names.
pub fn histogram_table(histogram: &[Vec<u32>], classes: &[String], clients: &[String]) -> String {
    let head = ["client", "size"].map(str::to_owned).into_iter().chain(classes.iter().cloned());
    let row = |(client, counts): (usize, &Vec<u32>)| {
        let size: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let counts = counts.iter().map(u32::to_string);
        let name = clients.get(client).map_or_else(|| client.to_string(), |name| cell(name));
        [name, size.to_string()].into_iter().chain(counts).collect()
    };
    csv([head.collect::<Vec<String>>()].into_iter().chain(histogram.iter().enumerate().map(row)))
}

/// A name as a field of a CSV file that may be opened in a spreadsheet: a name that begins like a formula gets an
/// apostrophe before it, which [`from_cell`] removes.
pub fn cell(name: &str) -> String {
    if is_formula(name) { format!("'{name}") } else { name.to_owned() }
}

/// The name in a field that [`cell`] or a person wrote.
pub fn from_cell(field: &str) -> &str {
    match field.strip_prefix('\'') {
        Some(name) if is_formula(name) => name,
        _ => field,
    }
}

/// Whether a spreadsheet may take a name for a formula. Apostrophes before it count too, so that a name that begins with
/// one is read back unchanged.
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
            let text = csv([["name", "other"], [&cell(name), ""]]);
            assert_eq!(text, format!("name,other\n{field},\n"));
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let record = reader.records().next().unwrap().unwrap();
            assert_eq!(from_cell(&record[0]), name);
        }
    }

    #[test]
    fn the_table_has_one_line_per_client() {
        let classes = ["cat".into(), "dog, \"big\"".into()];
        assert_eq!(
            histogram_table(&[vec![3, 4], vec![0, 1]], &classes, &[]),
            "client,size,cat,\"dog, \"\"big\"\"\"\n0,7,3,4\n1,1,0,1\n"
        );
        let clients = ["ward 7".into(), "=north".into()];
        assert_eq!(
            histogram_table(&[vec![3], vec![1]], &classes[..1], &clients),
            "client,size,cat\nward 7,3,3\n'=north,1,1\n"
        );
    }
}

//! Writes the references in `docs/` again:
//!
//!     cargo run --locked -p fedanchor-reference

use std::io::Write;

fn main() -> anyhow::Result<()> {
    for page in fedanchor_reference::pages()? {
        if page.found != page.expected {
            fs_err::write(&page.path, &page.expected)?;
            writeln!(std::io::stdout(), "wrote {}", page.path.display())?;
        }
    }
    Ok(())
}

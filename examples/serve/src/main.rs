//! The example as a program: `serve RUN [ADDRESS]`.

use fedanchor::Model;
use fedanchor::engine::Device;
use std::path::Path;

#[tokio::main]
#[allow(clippy::print_stderr)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (run, address) = match &arguments[..] {
        [run] => (run, "127.0.0.1:8080"),
        [run, address] => (run, address.as_str()),
        _ => {
            eprintln!("usage: serve RUN [ADDRESS]");
            std::process::exit(1);
        }
    };
    let model = Model::load(Path::new(run), Device::Cpu)?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    eprintln!("serving {} classes on http://{}", model.classes().len(), listener.local_addr()?);
    Ok(axum::serve(listener, serve::service(model)).await?)
}

//! Prints one OpenAPI document, to compare with another server's: `apis/apps/v1`, `v2`, `index`.

use std::io::Write;

fn main() {
    let path = std::env::args().nth(1).unwrap_or_default();
    let document = match &*path {
        "index" => Some(api_schema::v3_index(&[])),
        "v2.pb" => Some(api_schema::v2_protobuf().json()),
        "v2" => Some(api_schema::v2().json()),
        path => api_schema::v3(path).map(|document| document.json()),
    };
    match document {
        Some(document) => drop(std::io::stdout().write_all(&document)),
        None => eprintln!("no such document: {path}"),
    }
}

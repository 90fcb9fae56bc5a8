//! Prints one discovery document, to compare with another server's: `/apis`, `/api/v1`, `/apis/apps`, ...
//! `aggregated` is the aggregated form of `/apis`.

use api_kinds::{discovery, kinds};

fn main() {
    let path = std::env::args().nth(1).unwrap_or_default();
    let all: Vec<_> = kinds().resources().iter().collect();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let document = match parts[..] {
        ["aggregated"] => Some(discovery::aggregated(&all, discovery::Root::Apis, "v2")),
        ["api"] => Some(discovery::api_versions("127.0.0.1:6443")),
        ["api", version] => discovery::resource_list(&all, "", version),
        ["apis"] => Some(discovery::group_list(&all)),
        ["apis", group] => discovery::group(&all, group),
        ["apis", group, version] => discovery::resource_list(&all, group, version),
        _ => None,
    };
    match document {
        Some(document) => println!("{document:#}"),
        None => eprintln!("no such document: {path}"),
    }
}

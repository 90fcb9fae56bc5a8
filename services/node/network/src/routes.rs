//! The nodes' pod networks reach one another by plain routes, where nodes share a network.
//!
//! [`plan`] says which commands lead from the routes that are there to those that should be;
//! [`Routes`] remembers and applies. Routes carry a protocol number of their own, so that those of a
//! killed run are found and everybody else's are left alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use tracing::{info, warn};

use crate::{CommandError, Subnet, run};

/// Marks our routes in the kernel's table; from the range nobody has assigned.
const PROTOCOL: &str = "82";

/// Where each pod network is: its node's address.
pub type Wanted = BTreeMap<Subnet, IpAddr>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Replace { to: Subnet, via: IpAddr },
    Remove { to: Subnet },
}

fn plan(wanted: &Wanted, present: &Wanted) -> Vec<Step> {
    let gone = present.keys().filter(|to| !wanted.contains_key(to)).map(|to| Step::Remove { to: *to });
    let changed = wanted.iter().filter(|(to, via)| present.get(to) != Some(via));
    gone.chain(changed.map(|(to, via)| Step::Replace { to: *to, via: *via })).collect()
}

/// The routes this process keeps.
#[derive(Debug, Default)]
pub struct Routes {
    present: Wanted,
}

impl Routes {
    /// Starts from what is in the kernel, be it of an earlier run.
    pub async fn load() -> Result<Routes, CommandError> {
        let mut present = Wanted::new();
        for family in ["-4", "-6"] {
            let printed = run("ip", &[family, "-json", "route", "show", "protocol", PROTOCOL], None).await?;
            let lines: Vec<Line> = serde_json::from_str(&printed).unwrap_or_default();
            for line in lines {
                let to = if line.dst.contains('/') { line.dst } else { format!("{}/32", line.dst) };
                if let (Ok(to), Some(via)) = (to.parse(), line.gateway) {
                    present.insert(to, via);
                }
            }
        }
        Ok(Routes { present })
    }

    /// Makes the kernel's routes those of `wanted`. A node that cannot be reached this way is said and
    /// skipped; the next call tries again. Returns the pod networks without a route.
    pub async fn apply(&mut self, wanted: &Wanted) -> Vec<Subnet> {
        let mut unreachable = Vec::new();
        for step in plan(wanted, &self.present) {
            match &step {
                Step::Replace { to, via } => {
                    let (to_text, via_text) = (to.to_string(), via.to_string());
                    let command = ["route", "replace", &to_text, "via", &via_text, "protocol", PROTOCOL];
                    match run("ip", &command, None).await {
                        Ok(_) => {
                            info!(%to, %via, "route to a node's pods");
                            self.present.insert(*to, *via);
                        }
                        Err(error) => {
                            warn!(%to, %via, %error, "no plain route to this node's pods: it is on another network");
                            unreachable.push(*to);
                        }
                    }
                }
                Step::Remove { to } => {
                    let to_text = to.to_string();
                    let command = ["route", "delete", &to_text, "protocol", PROTOCOL];
                    match run("ip", &command, None).await {
                        Err(error) if !error.said("No such process") => {
                            warn!(%to, %error, "route stays behind")
                        }
                        _ => {
                            self.present.remove(to);
                        }
                    }
                }
            }
        }
        unreachable
    }
}

#[derive(Deserialize)]
struct Line {
    dst: String,
    gateway: Option<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(given: &[(&str, &str)]) -> Wanted {
        given.iter().map(|(to, via)| (to.parse().unwrap(), via.parse().unwrap())).collect()
    }

    #[test]
    fn only_differences_are_applied() {
        let one = [("10.244.1.0/24", "172.31.240.11")];
        let moved = [("10.244.1.0/24", "172.31.240.12")];
        for (wanted, present, steps) in [
            (&one[..], &one[..], ""),
            (&one, &[], "replace 10.244.1.0/24 via 172.31.240.11"),
            (&moved, &one, "replace 10.244.1.0/24 via 172.31.240.12"),
            (&[], &one, "remove 10.244.1.0/24"),
        ] {
            let said: Vec<String> = plan(&routes(wanted), &routes(present))
                .into_iter()
                .map(|step| match step {
                    Step::Replace { to, via } => format!("replace {to} via {via}"),
                    Step::Remove { to } => format!("remove {to}"),
                })
                .collect();
            assert_eq!(said.join(", "), steps);
        }
    }
}

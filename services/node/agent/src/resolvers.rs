//! Who resolves names for this machine.

use std::net::IpAddr;
use std::path::Path;

/// What a resolver configuration says that matters to us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolvers {
    pub servers: Vec<IpAddr>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

impl Resolvers {
    /// The machine's, leaving out loopback ones where a namespace of our own could not reach them. A stub
    /// of systemd's is looked behind.
    pub fn of_this_machine(keep_loopback: bool) -> Resolvers {
        let read =
            |path: &str| std::fs::read_to_string(Path::new(path)).ok().map(|text| Resolvers::parse(&text));
        let mut first = read("/etc/resolv.conf").unwrap_or_default();
        if first.servers.iter().all(IpAddr::is_loopback)
            && let Some(behind) = read("/run/systemd/resolve/resolv.conf")
        {
            first = behind;
        }
        if !keep_loopback {
            first.servers.retain(|server| !server.is_loopback());
        }
        first
    }

    pub fn parse(text: &str) -> Resolvers {
        let mut found = Resolvers::default();
        for line in text.lines() {
            let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
            let rest =
                |words: &mut std::str::SplitWhitespace<'_>| words.map(str::to_owned).collect::<Vec<_>>();
            match words.next() {
                // A scope (%eth0) means nothing elsewhere.
                Some("nameserver") => {
                    found
                        .servers
                        .extend(words.next().and_then(|word| word.split('%').next()?.parse::<IpAddr>().ok()));
                }
                // The last one counts, as for the C library.
                Some("search" | "domain") => found.search = rest(&mut words),
                Some("options") => found.options.extend(rest(&mut words)),
                _ => {}
            }
        }
        found
    }

    /// As a file for pods.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for server in &self.servers {
            text += &format!("nameserver {server}\n");
        }
        if !self.search.is_empty() {
            text += &format!("search {}\n", self.search.join(" "));
        }
        if !self.options.is_empty() {
            text += &format!("options {}\n", self.options.join(" "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_the_c_library_does() {
        for (text, rendered) in [
            ("nameserver 192.0.2.1\nsearch a b\n", "nameserver 192.0.2.1\nsearch a b\n"),
            ("# comment\nnameserver fe80::1%eth0 ; here\n", "nameserver fe80::1\n"),
            ("domain x\nsearch y z\noptions ndots:2 edns0", "search y z\noptions ndots:2 edns0\n"),
            ("nameserver rubbish\nnonsense", ""),
        ] {
            assert_eq!(Resolvers::parse(text).render(), rendered, "{text:?}");
        }
    }
}

//! Which encoding, and which shape, a client wants back.
//!
//! [`Accept::parse`] reads the header once; [`Accept::choose`] picks among what an endpoint can send. Pure.
//!
//! Not here: encoding (`encode`).

use api_kinds::ResourceInfo;
use api_machinery::Status;

use crate::query::Query;

/// A serialisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    pub fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
    /// From a media type without parameters.
    fn named(range: &str) -> Option<Media> {
        match range {
            "application/json" => Some(Media::Json),
            "application/yaml" => Some(Media::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Media::Protobuf),
            _ => None,
        }
    }
}

/// What an object is turned into before it is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Shape {
    #[default]
    Itself,
    Table,
    PartialMetadata,
}

/// `g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList`, which is a shape of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    Plain,
    AggregatedV2,
    AggregatedV2Beta1,
}

/// The answer's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    pub media: Media,
    pub shape: Shape,
    /// Two-space indentation; JSON only.
    pub pretty: bool,
}

impl Chosen {
    pub const JSON: Chosen = Chosen { media: Media::Json, shape: Shape::Itself, pretty: false };
}

/// What an endpoint can send.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub media: &'static [Media],
    /// Table and PartialObjectMetadata: for what has metadata.
    pub shapes: bool,
    /// Custom resources have no protobuf; their metadata alone has.
    pub schemaless: bool,
}

impl Offer {
    pub const OBJECTS: Offer =
        Offer { media: &[Media::Json, Media::Yaml, Media::Protobuf], shapes: true, schemaless: false };
    /// Reviews, scale of nothing, errors: one shape only.
    pub const PLAIN: Offer =
        Offer { media: &[Media::Json, Media::Yaml, Media::Protobuf], shapes: false, schemaless: false };
    /// A watch is a stream; upstream frames YAML as well, nobody asks for it.
    pub const WATCH: Offer =
        Offer { media: &[Media::Json, Media::Protobuf], shapes: true, schemaless: false };

    /// [`Offer::OBJECTS`], as far as a resource's objects have it.
    pub fn of(resource: &ResourceInfo) -> Offer {
        Offer { schemaless: resource.is_custom(), ..Offer::OBJECTS }
    }
    pub fn watch_of(resource: &ResourceInfo) -> Offer {
        Offer { schemaless: resource.is_custom(), ..Offer::WATCH }
    }
}

/// A parsed `Accept` header, best clause first.
#[derive(Debug, Clone, Default)]
pub struct Accept {
    clauses: Vec<Clause>,
    /// There is a header, though every clause of it may be refused.
    given: bool,
    pretty: bool,
}

#[derive(Debug, Clone)]
struct Clause {
    range: String,
    quality_thousandths: u32,
    parameters: Vec<(String, String)>,
}

impl Clause {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Clauses read of one header: far more than any client sends, far fewer than would be work.
const CLAUSES: usize = 32;

impl Accept {
    /// `user_agent` decides about indentation when the client did not: people read what curl prints.
    pub fn parse(header: Option<&str>, query: &Query, user_agent: Option<&str>) -> Accept {
        let mut clauses: Vec<Clause> =
            header.unwrap_or_default().split(',').take(CLAUSES).filter_map(parse_clause).collect();
        clauses.sort_by_key(|clause| std::cmp::Reverse(clause.quality_thousandths));
        let pretty = match query.get("pretty") {
            Some(_) => query.flag("pretty"),
            None => user_agent.is_some_and(|agent| {
                ["curl", "Wget", "Mozilla/5.0"].iter().any(|one| agent.starts_with(one))
            }),
        };
        let given = header.is_some_and(|header| !header.trim().is_empty());
        Accept { clauses, given, pretty }
    }

    /// The first clause that `offer` can satisfy; no header means JSON. 406 when nothing fits.
    pub fn choose(&self, offer: Offer) -> Result<Chosen, Status> {
        if !self.given {
            return Ok(Chosen { pretty: self.pretty, ..Chosen::JSON });
        }
        self.clauses.iter().find_map(|clause| self.satisfy(clause, offer)).ok_or_else(|| {
            let names: Vec<&str> = offer.media.iter().map(|media| media.content_type()).collect();
            Status::not_acceptable(format!(
                "only the following media types are accepted: {}",
                names.join(", ")
            ))
        })
    }

    fn satisfy(&self, clause: &Clause, offer: Offer) -> Option<Chosen> {
        let media = match clause.range.as_str() {
            "*/*" | "application/*" => offer.media[0],
            range => Media::named(range).filter(|media| offer.media.contains(media))?,
        };
        let shape = match clause.parameter("as") {
            None => Shape::Itself,
            Some(kind) => {
                let meta = clause.parameter("g") == Some("meta.k8s.io")
                    && matches!(clause.parameter("v"), Some("v1" | "v1beta1"));
                match kind {
                    "Table" if meta && offer.shapes && media != Media::Protobuf => Shape::Table,
                    "PartialObjectMetadata" | "PartialObjectMetadataList" if meta && offer.shapes => {
                        Shape::PartialMetadata
                    }
                    _ => return None,
                }
            }
        };
        if offer.schemaless && media == Media::Protobuf && shape == Shape::Itself {
            return None;
        }
        let pretty = match clause.parameter("pretty") {
            Some(value) => value != "0" && value != "false",
            None => self.pretty,
        };
        Some(Chosen { media, shape, pretty: pretty && media == Media::Json })
    }

    /// For errors: whatever can be had, JSON when nothing can.
    pub fn choose_for_error(&self) -> Chosen {
        // A client that wants `as=Table` alone in JSON gets its Status in JSON.
        self.choose(Offer::PLAIN).unwrap_or(Chosen { pretty: self.pretty, ..Chosen::JSON })
    }

    /// `/api` and `/apis` in one document, or as they always were.
    pub fn discovery(&self) -> Discovery {
        for clause in &self.clauses {
            if !matches!(clause.range.as_str(), "application/json" | "application/*" | "*/*") {
                continue;
            }
            match (clause.parameter("g"), clause.parameter("v"), clause.parameter("as")) {
                (Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => {
                    return Discovery::AggregatedV2;
                }
                (Some("apidiscovery.k8s.io"), Some("v2beta1"), Some("APIGroupDiscoveryList")) => {
                    return Discovery::AggregatedV2Beta1;
                }
                (None, None, None) => return Discovery::Plain,
                _ => {}
            }
        }
        Discovery::Plain
    }

    /// Whether a clause names exactly this media type (parameters ignored); for OpenAPI's own types.
    pub fn names(&self, media_type: &str) -> bool {
        self.clauses.iter().any(|clause| clause.range == media_type)
    }
    /// No header: anything goes.
    pub fn is_empty(&self) -> bool {
        !self.given
    }
}

fn parse_clause(text: &str) -> Option<Clause> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().filter(|range| !range.is_empty())?.to_ascii_lowercase();
    let mut clause = Clause { range, quality_thousandths: 1000, parameters: Vec::new() };
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        if key == "q" {
            let quality: f64 = value.parse().unwrap_or(1.0);
            // Between 0 and 1 after the clamp, so the cast keeps every thousandth.
            clause.quality_thousandths = (quality.clamp(0.0, 1.0) * 1000.0) as u32;
        } else {
            clause.parameters.push((key, value.to_owned()));
        }
    }
    (clause.quality_thousandths > 0).then_some(clause)
}

/// What a request body is written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentType {
    /// Lower case, without parameters; empty when the header is absent.
    pub essence: String,
}

impl ContentType {
    pub fn parse(header: Option<&str>) -> ContentType {
        let essence = header.unwrap_or_default().split(';').next().unwrap_or_default();
        ContentType { essence: essence.trim().to_ascii_lowercase() }
    }
    /// For a body that is an object. Absent means JSON, as upstream has it.
    pub fn media(&self) -> Result<Media, Status> {
        if self.essence.is_empty() {
            return Ok(Media::Json);
        }
        Media::named(&self.essence)
            .ok_or_else(|| Status::unsupported_media_type(&self.essence, &Offer::OBJECTS.media.map_types()))
    }
}

trait MapTypes {
    fn map_types(&self) -> Vec<&'static str>;
}
impl MapTypes for &'static [Media] {
    fn map_types(&self) -> Vec<&'static str> {
        self.iter().map(|media| media.content_type()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Offer = Offer { media: &[Media::Json, Media::Yaml], shapes: true, schemaless: false };
    const CUSTOM: Offer = Offer { schemaless: true, ..Offer::OBJECTS };
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

    #[test]
    fn the_best_clause_that_can_be_had_wins() {
        for (accept, offer, wanted) in [
            (None, Offer::OBJECTS, "json itself"),
            (Some("*/*"), Offer::OBJECTS, "json itself"),
            (Some("application/json"), Offer::OBJECTS, "json itself"),
            (Some("application/vnd.kubernetes.protobuf, */*"), Offer::OBJECTS, "protobuf itself"),
            (Some("application/vnd.kubernetes.protobuf,application/json"), TEXT, "json itself"),
            (Some("application/yaml;q=0.5,application/json;q=0.9"), Offer::OBJECTS, "json itself"),
            (Some("application/yaml"), Offer::OBJECTS, "yaml itself"),
            (Some("application/json;q=0"), Offer::OBJECTS, "406"),
            (Some("text/html"), Offer::OBJECTS, "406"),
            (Some(TABLE), Offer::OBJECTS, "json table"),
            (Some(TABLE), Offer::PLAIN, "json itself"),
            (Some("application/json;as=Table;v=v1;g=meta.k8s.io"), Offer::PLAIN, "406"),
            (Some("application/json;as=Table;v=v2;g=meta.k8s.io"), Offer::OBJECTS, "406"),
            (
                Some("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
                Offer::OBJECTS,
                "protobuf metadata",
            ),
            (Some("application/json;pretty=1"), Offer::OBJECTS, "json itself pretty"),
            (Some("application/vnd.kubernetes.protobuf,application/json"), CUSTOM, "json itself"),
            (Some("application/vnd.kubernetes.protobuf"), CUSTOM, "406"),
            (
                Some("application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"),
                CUSTOM,
                "protobuf metadata",
            ),
        ] {
            let got = match Accept::parse(accept, &Query::default(), None).choose(offer) {
                Err(status) => status.code.to_string(),
                Ok(chosen) => shown(chosen),
            };
            assert_eq!(got, wanted, "{accept:?}");
        }
    }

    fn shown(chosen: Chosen) -> String {
        let media = match chosen.media {
            Media::Json => "json",
            Media::Yaml => "yaml",
            Media::Protobuf => "protobuf",
        };
        let shape = match chosen.shape {
            Shape::Itself => "itself",
            Shape::Table => "table",
            Shape::PartialMetadata => "metadata",
        };
        format!("{media} {shape}{}", if chosen.pretty { " pretty" } else { "" })
    }

    #[test]
    fn discovery_is_aggregated_only_on_request() {
        for (accept, wanted) in [
            (None, Discovery::Plain),
            (Some("application/json"), Discovery::Plain),
            (
                Some("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"),
                Discovery::AggregatedV2,
            ),
            (
                Some("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
                Discovery::AggregatedV2Beta1,
            ),
            (Some("application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList"), Discovery::Plain),
        ] {
            assert_eq!(Accept::parse(accept, &Query::default(), None).discovery(), wanted, "{accept:?}");
        }
    }

    #[test]
    fn people_get_indentation() {
        for (query, agent, wanted) in [
            ("", Some("curl/8.1"), true),
            ("", Some("kubectl/v1.36"), false),
            ("pretty=true", None, true),
            ("pretty=false", Some("curl/8.1"), false),
        ] {
            let accept = Accept::parse(None, &Query::parse(Some(query)), agent);
            assert_eq!(accept.choose(Offer::OBJECTS).unwrap().pretty, wanted, "{query} {agent:?}");
        }
    }
}

//! How long an evaluation takes: `cargo run --release -p api-cel --example bench`.

use std::time::Instant;

use api_cel::{Budget, Decl, Env, Value, compile, explain};
use serde_json::json;

const ROUNDS: u32 = 200_000;

fn main() {
    let schema = json!({"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "name": {"type": "string"},
        "ports": {"type": "array", "items": {"type": "object", "properties": {"port": {"type": "integer"}}}},
    }});
    let Some(decl) = Decl::from_schema(&schema, false, "selfType") else { return };
    let ports: Vec<_> = (1..=10).map(|port| json!({"port": port})).collect();
    let data = json!({"replicas": 3, "name": "web-1", "ports": ports});
    let env = Env::kubernetes().declared("self", decl.clone().into());
    for source in [
        "true",
        "has(self.replicas)",
        "self.replicas <= 10",
        "self.replicas >= 1 && self.replicas <= 10",
        "self.name.matches('^[a-z0-9-]+$')",
        "self.name in ['web-1', 'web-2', 'web-3']",
        "self.ports.all(p, p.port > 0 && p.port < 65536)",
        "self.ports.map(p, p.port).sum() > 0",
        "quantity('1Gi').isLessThan(quantity('2Gi'))",
    ] {
        let begun = Instant::now();
        let program = match compile(&env, source) {
            Ok(program) => program,
            Err(issues) => return println!("{}", explain(&issues)),
        };
        let compiled = begun.elapsed();
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            let Ok(value) = Value::typed(&data, &decl) else { return };
            let outcome = program.eval(&[("self", value)], &mut Budget::new(10_000_000));
            assert_eq!(outcome.as_ref().map(Value::as_bool), Ok(Some(true)), "{source}");
        }
        let each = begun.elapsed() / ROUNDS;
        println!("{source:<55} compile {compiled:>9.1?}  eval {each:>8.0?}");
    }
}

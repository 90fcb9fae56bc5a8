//! ImageLocality: nodes that have the images already.

use crate::model::{NodeInfo, PodInfo, Snapshot};

const MEGABYTE: i64 = 1024 * 1024;
/// Below this an image is quickly pulled; above the other it doesn't matter any more how big it is.
const SMALL: i64 = 23 * MEGABYTE;
const BIG_PER_CONTAINER: i64 = 1000 * MEGABYTE;

/// 0 to 100. A size counts in proportion to how many nodes have the image, so that one warm node does not
/// attract everything.
pub(crate) fn score(pod: &PodInfo, node: &NodeInfo, snapshot: &Snapshot) -> i64 {
    let total = snapshot.nodes.len().max(1) as f64;
    let mut sum = 0;
    for image in &pod.images {
        let name = with_tag(image);
        if let Some(size) = node.images.get(&name) {
            let having = snapshot.nodes.values().filter(|node| node.images.contains_key(&name)).count();
            sum += (*size as f64 * having as f64 / total) as i64;
        }
    }
    let most = BIG_PER_CONTAINER.saturating_mul(i64::try_from(pod.images.len()).unwrap_or(1).max(1));
    if sum <= SMALL {
        return 0;
    }
    100 * (sum.min(most) - SMALL) / (most - SMALL)
}

fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || last.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod, snapshot};
    use serde_json::json;

    #[test]
    fn a_node_with_a_big_image_scores() {
        let having = |size: i64| json!({"images": [{"names": ["r.io/a:latest"], "sizeBytes": size}]});
        for (image, size, wanted) in [
            ("r.io/a", 2000 * MEGABYTE, 100),
            ("r.io/a", MEGABYTE, 0),
            ("r.io/b", 2000 * MEGABYTE, 0),
            ("r.io/a:1", 2000 * MEGABYTE, 0),
        ] {
            let nodes = snapshot(vec![node("n", having(size))]);
            let pod = pod("p", json!({"containers": [{"name": "c", "image": image}]}));
            assert_eq!(score(&pod, &nodes.nodes["n"], &nodes), wanted, "{image} {size}");
        }
    }
}

//! The fleet itself: cells, health, metrics, the API's own description.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use fleet_model::{CellInfo, Page, Problem};
use utoipa::OpenApi;

use super::extract::{PageQuery, page};
use super::openapi::Document;
use super::{Answer, Shared};
use crate::db::CellRow;
use crate::problem::Failure;

#[utoipa::path(get, path = "/api/v1/cells", params(PageQuery), operation_id = "list_cells",
    responses((status = 200, body = Page<CellInfo>), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn cells(state: Shared, query: PageQuery) -> Answer<Json<Page<CellInfo>>> {
    let limit = query.limit()?;
    // What is known of them is a second old; asking here would take as long as the slowest.
    let info = |cell: CellRow| CellInfo {
        reachable: state.observed.is_reachable(cell.id),
        id: cell.id,
        name: cell.name,
        clusters: cell.clusters,
    };
    // A fleet has few cells, so the page is cut here.
    let cells = state.db.cells().await?;
    let after = cells.into_iter().filter(|cell| cell.name.as_str() > query.after());
    let items = after.take(usize::try_from(limit + 1).unwrap_or(usize::MAX)).map(info).collect();
    Ok(page(items, limit, |item| item.name.to_string()))
}

pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}

pub(super) async fn healthy() -> &'static str {
    "ok"
}

pub(super) async fn ready(state: Shared) -> Answer<&'static str> {
    state.db.cells().await.map_err(|error| Failure::Unavailable(error.to_string()))?;
    Ok("ok")
}

pub(super) async fn metrics(state: Shared) -> Response {
    let text = base_telemetry::encode(&state.metrics.registry);
    ([(header::CONTENT_TYPE, base_telemetry::METRICS_CONTENT_TYPE)], text).into_response()
}

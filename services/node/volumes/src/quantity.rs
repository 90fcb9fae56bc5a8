//! The quantities of typed objects, as the numbers a node works with.

use api_machinery::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The quantity in thousandths, rounded up; `None` when it is no quantity. Saturates far beyond any machine.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    Amount::parse(&quantity.0).ok().map(|amount| amount.milli())
}

/// The quantity in whole units, rounded up.
pub fn whole(quantity: &Quantity) -> Option<i64> {
    Amount::parse(&quantity.0).ok().map(|amount| amount.value())
}

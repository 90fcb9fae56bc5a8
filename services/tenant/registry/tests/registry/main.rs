//! The registry over an in-memory group: one binary, a file for each part of its behaviour.

mod admission;
mod crud;
mod custom;
mod pods;
mod reads;
mod rules;
mod services;
mod support;

//! Server of the what-if page: a form for a study, answered in the browser.
//!
//! ```text
//! query or body ─read─► Form ─► StudyText (TOML) ─► study reader and runner ─► Answer ─► HTML, JSON
//!                        ▲                                │ runs cached by key
//!                        └──── query of the link          └ answers cached by TOML
//! ```
//!
//! The form contains only names of shipped data and numbers in ranges, so that a request can name no file. Its study is
//! the text that the user can take away; the reader and the runner are those of `fabricast study`, and so are the
//! results, byte for byte.
//!
//! | module | content |
//! |---|---|
//! | `form` | fields, their valid values, links, and the study in TOML |
//! | `answer` | answers of studies, with cached runs |
//! | `jobs` | computations in progress, shared and stopped by tickets |
//! | `access` | method, host, origin and token of requests |
//! | `page` | HTML of the form; `serve.css`, `serve.js` |
//! | `routes` | requests and responses, without sockets |
//! | `server` | sockets, connections, and their limits |

mod access;
mod answer;
mod cache;
mod form;
mod jobs;
mod page;
mod random;
mod routes;
mod server;
#[cfg(test)]
mod tests;

pub use server::{ServeError, Settings, TokenUse, serve};

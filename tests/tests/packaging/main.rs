//! What Tidegate is shipped as: images, manifests, the chart, and the files of `make install`.

mod chart;
mod images;
mod install;
mod manifests;
mod mesh;
mod proxies;

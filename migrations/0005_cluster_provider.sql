-- Which cloud provider has a cluster's load balancers, and the node pools that name none; empty: its cell's first.

ALTER TABLE clusters ADD COLUMN provider TEXT NOT NULL DEFAULT '';

-- Nothing: one writer needs no function for what Postgres has one.
SELECT 1;

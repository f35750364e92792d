-- Nothing: one writer looks for nothing in vain.
SELECT 1;

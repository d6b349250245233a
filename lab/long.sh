#!/bin/sh
# Reads lab/long-tests.txt: lines of a package and a test, or a subtest.
#   lab/long.sh skip      the tests as a pattern for `go test -skip`
#   lab/long.sh run K/N   for each package with tests in the K-th of N parts: its path and a pattern
#                         for `go test -run`
set -eu
list=$(dirname "$0")/long-tests.txt
case $1 in
skip) awk '!/^#/ && NF { printf "%s%s", sep, $2; sep = "|" }' "$list" ;;
run)
  awk -v part="$2" '
    BEGIN { split(part, p, "/") }
    !/^#/ && NF && i++ % p[2] == p[1] - 1 {
      if ($1 in tests) tests[$1] = tests[$1] "|" $2
      else { order[++n] = $1; tests[$1] = $2 }
    }
    END { for (j = 1; j <= n; j++) print order[j], tests[order[j]] }' "$list"
  ;;
esac

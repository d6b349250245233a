#!/bin/bash
# Upgrades a cluster under traffic from the previous release to the current commit, rolls back, and
# upgrades again. Both are as `make release` writes them:
#
#   lab/upgrade.sh [FROM]
#
# FROM is the commit of the previous release, by default its tag: the second version in
# CHANGELOG.md. The cluster is that of `make cluster` and stays up.
set -euo pipefail
fail() { echo "upgrade: $*" >&2; exit 1; }
mapfile -t versions < <(sed -n 's/^## \(v[^ ]*\).*/\1/p' CHANGELOG.md)
[ ${#versions[@]} -ge 2 ] || fail "CHANGELOG.md has no previous release"
from=${1:-${versions[1]}}
git rev-parse --quiet --verify "$from^{commit}" >/dev/null ||
	fail "there is no commit $from; name that of ${versions[1]}: make e2e-upgrade FROM=COMMIT"

# release COMMIT VERSION makes a release in a worktree of its own, without uncommitted files.
release() {
	tree=$(mktemp -d)
	trap 'git worktree remove --force "$tree"' EXIT
	echo "upgrade: $2 is commit $(git rev-parse --short "$1")"
	git worktree add --quiet --detach "$tree" "$1"
	make -C "$tree" build bin/helm
	(cd "$tree" && image/release.sh "$2" hairpin "$(go env GOHOSTARCH)")
	rm -rf "dist/hairpin-$2"
	mv "$tree/dist/hairpin-$2" dist/
	git worktree remove --force "$tree"
	trap - EXIT
}
release "$from" "${versions[1]}"
release HEAD "${versions[0]}"
bin/lab cluster up --release "dist/hairpin-${versions[1]}" --set "config.gateway.mode=${MODE:-shared}"
go test -tags e2e -timeout 20m -count 1 -v ./lab/e2e -run UpgradeFromRelease \
	-args -release "dist/hairpin-${versions[0]}"

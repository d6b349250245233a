#!/bin/bash
# Writes a release of the commit that is checked out to dist/hairpin-VERSION:
#
#   image/release.sh VERSION IMAGE [ARCHITECTURE…]
#
# VERSION, such as v0.2.0, has a section in CHANGELOG.md. IMAGE is the images' repository, such as
# registry.example/net/hairpin. Without architectures, the release is for amd64 and arm64. The
# environment variable URL is the address at which krew finds the files.
set -euo pipefail
version=$1 image=$2
shift 2
[ $# -gt 0 ] || set -- amd64 arm64
fail() { echo "release: $*" >&2; exit 1; }
number='(0|[1-9][0-9]*)'
[[ $version =~ ^v$number\.$number\.$number(-[0-9A-Za-z.-]+)?$ ]] ||
	fail "VERSION=$version is not a version such as v0.2.0"
[ -z "$(git status --porcelain)" ] || fail "commit your changes first: a release is of a commit"
changes=$(awk -v title="## $version" '
	/^## / { if (on) exit; on = $0 == title || index($0, title " ") == 1 }
	on' CHANGELOG.md)
[ -n "$changes" ] || fail "CHANGELOG.md has no section \"## $version\""

out=dist/hairpin-$version
rm -rf "$out" && mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
time="@$(git log -1 --format=%ct)" # of the commit, so that the same commit gives the same bytes
# pack DIRECTORY ARCHIVE FILE… writes an archive that depends only on the files' names and content.
pack() {
	tar --sort=name --mtime="$time" --owner=0 --group=0 --numeric-owner --format=gnu -C "$1" -c "${@:3}" |
		gzip -n9 >"$2"
}

programs=()
for arch; do
	echo "release: programs for linux/$arch"
	mkdir "$work/$arch"
	names="-X hairpin/report.release=$version -X hairpin/report.image=$image:$version"
	GOARCH=$arch go build -ldflags "-s -w $names" -o "$work/$arch/hairpin" ./cmd/hairpin
	GOARCH=$arch go build -C image/portmap -o "$work/$arch/portmap" \
		github.com/containernetworking/plugins/plugins/meta/portmap
	ln -s hairpin "$work/$arch/kubectl-hairpin"
	pack "$work/$arch" "$out/hairpin-linux-$arch.tar.gz" hairpin kubectl-hairpin
	mkdir "$work/$arch/krew" # krew accepts no links
	cp "$work/$arch/hairpin" "$work/$arch/krew/kubectl-hairpin"
	cp LICENSE "$work/$arch/krew"
	pack "$work/$arch/krew" "$out/kubectl-hairpin-linux-$arch.tar.gz" kubectl-hairpin LICENSE
	programs+=(--hairpin "$work/$arch/hairpin" --portmap "$work/$arch/portmap")
done

echo "release: images"
bin/lab image --locked --oci "$out/hairpin-images.tar" --name "$image:$version" "${programs[@]}" |
	tee "$work/images"
ovs=$(sed -n 's/.* has the images .*-ovs:\([^ ]*\)$/\1/p' "$work/images")
[ -n "$ovs" ] || fail "the tag of Open vSwitch's image is unknown"

# The chart's values name the images of this release, so that users need not set them.
cp -r charts/hairpin "$work/hairpin"
values=$work/hairpin/values.yaml
sed -i "0,/^  repository: \"\"$/s||  repository: $image|; 0,/^    tag: \"\"$/s||    tag: \"$ovs\"|" "$values"
grep -qx "  repository: $image" "$values" && grep -qx "    tag: \"$ovs\"" "$values" ||
	fail "charts/hairpin/values.yaml does not have the lines that release.sh expects"
sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" \
	"$work/hairpin/Chart.yaml"
# What Artifact Hub shows. The annotations are the last section of Chart.yaml.
platforms=$(printf ', linux/%s' "$@")
cat >>"$work/hairpin/Chart.yaml" <<END
  artifacthub.io/prerelease: "$([[ $version == *-* ]] && echo true || echo false)"
  artifacthub.io/images: |
    - {name: hairpin, image: "$image:$version", platforms: [${platforms#, }]}
    - {name: hairpin-ovs, image: "$image-ovs:$ovs", platforms: [${platforms#, }]}
END
pack "$work" "$out/hairpin-${version#v}.tgz" hairpin
bin/helm lint --strict --quiet "$out/hairpin-${version#v}.tgz" --set apiServer.host=api-server.invalid
bin/helm template hairpin "$out/hairpin-${version#v}.tgz" --include-crds --skip-tests \
	--namespace hairpin --set namespace.create=true --set apiServer.host=api-server.invalid \
	>"$out/hairpin.yaml"

image/krew.sh "$version" "${URL:-https://release.invalid/$version}" \
	"$out"/kubectl-hairpin-linux-*.tar.gz >"$out/krew.yaml"
echo "$changes" >"$out/CHANGELOG.md"
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "release: $out"
(cd "$out" && ls -l)

#!/bin/bash
# Prints a Helm argument with the tag of Open vSwitch's image that belongs to an image: that of
# dist/hairpin-image.tar, if `make image-oci` made both. Put it before other arguments, so that
# these override it.
#
#   charts/ovs-tag.sh IMAGE
set -euo pipefail
cd "$(dirname "$0")/.."
repository=${1%:*} archive=dist/hairpin-image.tar values=dist/openvswitch-image.yaml
[ -e $archive ] || exit 0
tag=$(tar --extract --to-stdout --file $archive index.json |
	grep -o "[\"/]${repository##*/}-ovs:[^\"]*" | sed -n '1s/.*://p' || true)
[ -n "$tag" ] || exit 0
echo "openvswitch: {image: {tag: \"$tag\"}}" >$values
echo "--values $values"

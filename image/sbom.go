package image

import (
	"debug/buildinfo"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"
)

// writeBOM writes the contents of an image for all architectures: Debian's packages, and the Go
// modules of the programs. It has no time, and its serial number is derived from the image's
// digest. Thus the same image has the same text.
func writeBOM(dir, name string, sum digest.Digest, roots, programs []string) error {
	bom := cdx.NewBOM()
	hex := sum.Encoded()
	// RFC 9562, version 8
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%s-%s-8%s-8%s-%s", hex[:8], hex[8:12], hex[13:16], hex[17:20], hex[20:32])
	repository := path.Base(withoutTag(name))
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeContainer, Name: repository, Version: tag(name),
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex}},
	}}
	var list []cdx.Component
	for _, root := range roots {
		installed, err := installedPackages(root)
		if err != nil {
			return err
		}
		for _, p := range installed {
			list = append(list, cdx.Component{
				Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version,
				PackageURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s&upstream=%s", p.Name,
					url.PathEscape(p.Version), p.Architecture, Suite,
					url.QueryEscape(p.Source+"@"+p.SourceVersion)),
			})
		}
	}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("modules of %s: %w", program, err)
		}
		list = append(list, module("stdlib", strings.TrimPrefix(info.GoVersion, "go")),
			module(info.Main.Path, info.Main.Version))
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			list = append(list, module(m.Path, m.Version))
		}
	}
	for i := range list {
		list[i].BOMRef = list[i].PackageURL
	}
	slices.SortFunc(list, func(a, b cdx.Component) int { return strings.Compare(a.PackageURL, b.PackageURL) })
	list = slices.CompactFunc(list, func(a, b cdx.Component) bool { return a.PackageURL == b.PackageURL })
	bom.Components = &list
	file := filepath.Join(dir, repository+".cdx.json")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return f.Close()
}

func module(name, version string) cdx.Component {
	at := ""
	if version != "" && version != "(devel)" {
		at = "@" + version
	}
	return cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: "pkg:golang/" +
		name + at}
}

package charts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml3 "go.yaml.in/yaml/v3"

	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

const aboutAPI = `# API

This page lists the resources of Hairpin, and the labels and annotations that users set or read.
In a cluster, ` + "`kubectl explain egressip.spec`" + ` prints the fields. Group, names and fields of EgressIP
and EgressService are those of OVN-Kubernetes, and some fields of EgressIP are Hairpin's own.
[egress-ip.md](../user/egress-ip.md), [egress-service.md](../user/egress-service.md),
[load-balancer.md](../user/load-balancer.md), [bgp.md](../user/bgp.md) and
[pod-addresses.md](../user/pod-addresses.md) describe how to use the resources.
`

// labels returns the labels and annotations of the document.
func labels() [][4]string {
	return [][4]string{
		{cluster.LabelEgressAssignable, "label, any value", "Node", "set it: the node may have egress addresses"},
		{cluster.LabelEgressHost + "NAMESPACE-NAME", "label", "Node",
			"read it: the node is the host of this EgressService"},
		{annotation.HostLinks, "annotation", "Node",
			"read it: networks of the host's links, which decide which egress addresses fit"},
		{annotation.HostPorts, "annotation", "Node",
			"read it: the ports that the node's host uses, of those that LoadBalancerPools list for nodes' addresses"},
		{annotation.Shutdown, "annotation", "Node",
			"read it: the machine shuts down, and its egress and load balancer addresses move away"},
		{annotation.ExtraRanges, "annotation", "Namespace",
			"set it: ranges of further addresses that its pods may use"},
		{v1alpha1.AnnotationAddresses, "annotation", "Service",
			"set it: the load balancer addresses that the Service requests, comma-separated"},
		{v1alpha1.AnnotationSharing, "annotation", "Service",
			"set it: Services of the namespace with the same key may have the same load balancer address"},
		{cluster.LabelManagedBy, "label, `" + cluster.ManagedBy + "`", "FRRConfiguration",
			"read it: the controller writes and deletes this object"},
		{annotation.ExtraAddresses, "annotation", "Pod", "set it: further addresses that the pod uses"},
	}
}

// child returns the value of a key of a mapping, or nil.
func child(n *yaml3.Node, path ...string) *yaml3.Node {
	for _, key := range path {
		if n == nil {
			return nil
		}
		var found *yaml3.Node
		for i := 0; i+1 < len(n.Content) && n.Kind == yaml3.MappingNode; i += 2 {
			if n.Content[i].Value == key {
				found = n.Content[i+1]
			}
		}
		n = found
	}
	return n
}

func value(n *yaml3.Node) string {
	if n == nil {
		return ""
	}
	return strings.Join(strings.Fields(n.Value), " ")
}

// fieldType describes the type of a schema's field.
func fieldType(s *yaml3.Node) string {
	if enum := child(s, "enum"); enum != nil {
		var words []string
		for _, w := range enum.Content {
			words = append(words, "`"+w.Value+"`")
		}
		return strings.Join(words, ", ")
	}
	switch t := value(child(s, "type")); {
	case child(s, "properties", "matchLabels") != nil:
		return "label selector"
	case child(s, "items", "properties", "lastTransitionTime") != nil:
		return "list of Condition"
	case t == "array":
		return "list of " + fieldType(child(s, "items"))
	default:
		return t
	}
}

// writeFields writes a row for each field below a schema, in the order of the file.
func writeFields(b *strings.Builder, path string, s *yaml3.Node) {
	required := map[string]bool{}
	if list := child(s, "required"); list != nil {
		for _, r := range list.Content {
			required[r.Value] = true
		}
	}
	properties := child(s, "properties")
	for i := 0; i+1 < len(properties.Content); i += 2 {
		name, field := properties.Content[i].Value, properties.Content[i+1]
		kind := fieldType(field)
		needed := ""
		if required[name] {
			needed = "yes"
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", path, name, kind, needed, value(child(field, "description")))
		switch {
		case kind == "object":
			writeFields(b, path+name+".", field)
		case kind == "list of object":
			writeFields(b, path+name+"[].", child(field, "items"))
		}
	}
}

// TestAPIDocument: docs/reference/api.md is generated from the CustomResourceDefinitions:
// `go test ./charts -run APIDocument -update`.
func TestAPIDocument(t *testing.T) {
	files, err := filepath.Glob("hairpin/crds/*.yaml")
	must(t, err)
	var b strings.Builder
	b.WriteString(aboutAPI)
	for _, file := range files {
		var document yaml3.Node
		must(t, yaml3.Unmarshal(read(t, file), &document))
		spec := child(document.Content[0], "spec")
		version := child(spec, "versions").Content[0]
		schema := child(version, "schema", "openAPIV3Schema")
		fmt.Fprintf(&b, "\n## %s\n\n`%s/%s`, scope %s. %s\n\n", value(child(spec, "names", "kind")),
			value(child(spec, "group")),
			value(child(version, "name")), value(child(spec, "scope")), value(child(schema, "description")))
		b.WriteString("| field | type | required | meaning |\n|---|---|---|---|\n")
		for _, part := range []string{"spec", "status"} {
			writeFields(&b, part+".", child(schema, "properties", part))
		}
	}
	b.WriteString("\n## Labels and annotations\n\n| key | kind | of | meaning |\n|---|---|---|---|\n")
	for _, l := range labels() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", l[0], l[1], l[2], l[3])
	}
	b.WriteString("\n<!-- Made by `go test ./charts -run APIDocument -update`. -->\n")
	const path = "../docs/reference/api.md"
	if *update {
		must(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	if diff := cmp.Diff(strings.Split(string(read(t, path)), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s is out of date (go test ./charts -run APIDocument -update):\n%s", path, diff)
	}
}

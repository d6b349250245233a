package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"hairpin/api/clusternetworkpolicy"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
)

// file is one text of `---`-separated documents and the manifests read from it.
type file struct {
	name      string
	text      []byte
	manifests []manifest
	problems  []cluster.Problem
}

type manifest struct {
	owner  cluster.Owner
	object any
}

func fileProblem(file, field string, err error) cluster.Problem {
	return cluster.Problem{Owner: cluster.Owner{Kind: "File", Name: file}, Field: field, Message: err.Error()}
}

func parseFile(name string, text []byte) *file {
	f := &file{name: name, text: text}
	n := 0
	for doc, err := range cluster.Documents(text) {
		n++
		place := fmt.Sprintf("document %d", n)
		var j []byte
		if err == nil {
			j, err = yaml.YAMLToJSON(doc)
		}
		switch {
		case err != nil:
			f.problem(place, err)
		case string(j) != "null":
			f.document(place, metav1.TypeMeta{}, j)
		}
	}
	return f
}

func (f *file) problem(place string, err error) {
	f.problems = append(f.problems, fileProblem(f.name, place, err))
}

// document reads one object, or the items of a list. Items of a ServiceList may omit their type;
// outer has it.
func (f *file) document(place string, outer metav1.TypeMeta, j []byte) {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Items []raw `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(j, &head); err != nil {
		f.problem(place, wrongType(err))
		return
	}
	if head.Kind == "" {
		head.TypeMeta = outer
	}
	if head.Kind == "" {
		f.problem(place, errors.New("is no Kubernetes object: it has no kind"))
		return
	}
	if kind, is := strings.CutSuffix(head.Kind, "List"); is {
		inner := metav1.TypeMeta{APIVersion: head.APIVersion, Kind: kind}
		for i, item := range head.Items {
			f.document(fmt.Sprintf("%s items[%d]", place, i), inner, item)
		}
		return
	}
	object, err := newObject(head.APIVersion, head.Kind)
	switch {
	case err != nil:
		f.problem(place, err)
		return
	case object == nil:
		return // a kind that Hairpin does not read, such as Deployment
	case head.Metadata.Name == "":
		f.problem(place, fmt.Errorf("%s: metadata.name: is missing", head.Kind))
		return
	}
	if slices.Contains([]string{"Node", "Namespace", "EgressIP", "ServiceCIDR", "ClusterNetworkPolicy",
		"LoadBalancerPool", "BGPAdvertisement"},
		head.Kind) {
		// cluster-scoped
		head.Metadata.Namespace = ""
	} else if head.Metadata.Namespace == "" {
		head.Metadata.Namespace = metav1.NamespaceDefault
	}
	if err := checkName(head.Kind, head.Metadata.Namespace, head.Metadata.Name); err != nil {
		f.problem(place, err)
		return
	}
	f.object(cluster.Owner{Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}, object, j)
}

// checkName rejects names that the API server rejects (RFC 1123). Names occur in output and in
// names of rows and rules.
func checkName(kind, namespace, name string) error {
	valid := validation.IsDNS1123Subdomain
	if kind == "Service" || kind == "EgressService" || kind == "Namespace" {
		valid = validation.IsDNS1123Label
	}
	if wrong := valid(name); len(wrong) > 0 {
		return fmt.Errorf("%s: metadata.name: %q: %s", kind, name, wrong[0])
	}
	if namespace == "" {
		return nil
	}
	if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
		return fmt.Errorf("%s %s: metadata.namespace: %q: %s", kind, name, namespace, wrong[0])
	}
	return nil
}

// object reads an object. It reports unknown fields and uses the rest.
func (f *file) object(owner cluster.Owner, object metav1.Object, j []byte) {
	unknown, err := kjson.UnmarshalStrict(j, object)
	if err != nil {
		unknown = []error{wrongType(err)}
	}
	for _, e := range unknown {
		f.problems = append(f.problems, cluster.Problem{Owner: owner, Message: fmt.Sprintf("in %s: %v", f.name, e)})
	}
	if err == nil {
		object.SetNamespace(owner.Namespace)
		f.manifests = append(f.manifests, manifest{owner, object})
	}
}

// wrongType says in the terms of YAML that a field has a value of another type.
func wrongType(err error) error {
	var e *json.UnmarshalTypeError
	if !errors.As(err, &e) {
		return err
	}
	if e.Field == "" {
		return fmt.Errorf("is no Kubernetes object: it is %s", yamlValue(e.Value))
	}
	return fmt.Errorf("%s: is %s, not %s", e.Field, yamlValue(e.Value), yamlType(e.Type))
}

func yamlValue(value string) string {
	switch value {
	case "array":
		return "a list"
	case "object":
		return "a map"
	}
	return "a " + value // string, number, bool, "number 99999999999"
}

func yamlType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a map"
	case reflect.Pointer:
		return yamlType(t.Elem())
	case reflect.String, reflect.Bool:
		return "a " + t.Kind().String()
	}
	return "an integer (" + t.Kind().String() + ")"
}

// raw is the text of a part of a document.
type raw []byte

// UnmarshalJSON keeps the text.
func (r *raw) UnmarshalJSON(text []byte) error {
	*r = bytes.Clone(text)
	return nil
}

// newObject returns an empty object of a kind that the Store accepts, or nil. A kind that is known
// only in another version is an error.
func newObject(apiVersion, kind string) (metav1.Object, error) {
	var object metav1.Object
	want := "v1"
	switch kind {
	case "ClusterNetworkPolicy":
		object = &clusternetworkpolicy.ClusterNetworkPolicy{}
		versions := clusternetworkpolicy.Versions()
		want = versions[0].String()
		if apiVersion == versions[1].String() {
			want = apiVersion
		}
	case "Node":
		object = &corev1.Node{}
	case "Pod":
		object = &corev1.Pod{}
	case "Service":
		object = &corev1.Service{}
	case "EndpointSlice":
		object, want = &discoveryv1.EndpointSlice{}, "discovery.k8s.io/v1"
	case "ServiceCIDR":
		object, want = &networkingv1.ServiceCIDR{}, "networking.k8s.io/v1"
	case "NetworkPolicy":
		object, want = &networkingv1.NetworkPolicy{}, "networking.k8s.io/v1"
	case "Namespace":
		object = &corev1.Namespace{}
	case "EgressIP":
		object, want = &v1.EgressIP{}, v1.GroupVersion().String()
	case "EgressService":
		object, want = &v1.EgressService{}, v1.GroupVersion().String()
	case "LoadBalancerPool":
		object, want = &v1alpha1.LoadBalancerPool{}, v1alpha1.GroupVersion().String()
	case "BGPAdvertisement":
		object, want = &v1alpha1.BGPAdvertisement{}, v1alpha1.GroupVersion().String()
	}
	if object == nil || apiVersion == want {
		return object, nil
	}
	known, _, _ := strings.Cut(want, "/")
	if group, _, in := strings.Cut(apiVersion, "/"); in && group != known {
		return nil, nil // another project's kind of the same name
	}
	return nil, fmt.Errorf("%s: apiVersion: is %q, not %q", kind, apiVersion, want)
}

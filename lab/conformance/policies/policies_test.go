package policies

import (
	"flag"
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/yaml"

	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	conformance "sigs.k8s.io/network-policy-api/conformance/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	timeouts "sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

var (
	report  = flag.String("report", "", "file for the report, a ConformanceReport")
	version = flag.String("version", "", "the version of Hairpin, for the report")
)

// requestTimeout is how long a denied probe waits. Upstream's default of 3 s makes a run three
// times as long. The nodes of the cluster are one machine.
const requestTimeout = time.Second

// TestClusterNetworkPolicy runs all tests, standard and experimental, on the cluster of KUBECONFIG.
func TestClusterNetworkPolicy(t *testing.T) {
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Install(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	s, err := suite.NewConformanceProfileTestSuite(suite.ConformanceProfileOptions{
		Options: suite.Options{
			Client: c, ClientSet: clients, KubeConfig: *cfg, CleanupBaseResources: true,
			EnableAllSupportedFeatures: true,
			TimeoutConfig:              timeouts.TimeoutConfig{RequestTimeout: requestTimeout},
		},
		// whoever publishes a report adds addresses
		Implementation:      conformance.Implementation{Organization: "hairpin", Project: "hairpin", Version: *version},
		ConformanceProfiles: sets.New(suite.CNPConformanceProfileName),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Setup(t)
	if err := s.Run(t, tests.ConformanceTests); err != nil {
		t.Fatal(err)
	}
	result, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*report, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

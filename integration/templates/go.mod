// Renders templates as Go does, and reads YAML as kubectl does; see main.go.
module towline.dev/integration/templates

go 1.26.0

require sigs.k8s.io/yaml v1.6.0

require go.yaml.in/yaml/v2 v2.4.3 // indirect

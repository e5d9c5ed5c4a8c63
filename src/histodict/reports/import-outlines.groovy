// Imports the outlines that histodict found into every image of this project, each once.
// In QuPath: Automate > Project scripts > import-outlines, then Run (not "Run for project").
// An image that is open meanwhile shows them after File > Reload data.

import java.util.zip.GZIPInputStream
import qupath.lib.io.PathIO

def MARK = "histodict outlines"
def project = getProject()
def folder = new File(project.getPath().toFile().getAbsoluteFile().getParentFile().getParentFile(), "geojson")

for (entry in project.getImageList()) {
    def key = entry.getMetadataMap().get("histodict")
    def file = [".geojson", ".geojson.gz"].collect { new File(folder, "${key}${it}") }.find { it.isFile() }
    if (file == null) {
        println "${entry.getImageName()}: no outlines in ${folder}"
        continue
    }
    def imageData = entry.readImageData()
    def state = "${file.length()} bytes of ${file.lastModified()}".toString()
    def before = imageData.getProperty(MARK)
    if (before == null) {
        def stream = new BufferedInputStream(new FileInputStream(file))
        def found = PathIO.readObjectsFromGeoJSON(file.getName().endsWith(".gz") ? new GZIPInputStream(stream) : stream)
        imageData.getHierarchy().addObjects(found)
        imageData.setProperty(MARK, state)
        entry.saveImageData(imageData)
        println "${entry.getImageName()}: ${found.size()} outlines"
    } else if (before == state) {
        println "${entry.getImageName()}: its outlines were imported before"
    } else {
        println "${entry.getImageName()}: has outlines of an earlier answer, which stay; to have the new ones, " +
            "remove data/${entry.getID()}/data.qpdata, with all that was drawn there, and run this again"
    }
    imageData.getServer().close()
}
project.syncChanges()

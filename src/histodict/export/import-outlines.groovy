// Imports the outlines that histodict found into every image of this project, each once.
// In QuPath: Automate > Project scripts > import-outlines, then Run (not "Run for project").
// An image that is open meanwhile shows them after File > Reload data.

import java.util.zip.GZIPInputStream
import qupath.lib.io.PathIO

def MARK = "histodict outlines"
def project = getProject()
def folder = new File(project.getPath().toFile().getAbsoluteFile().getParentFile().getParentFile(), "geojson")

def bringIn = { entry, file ->
    def imageData = entry.readImageData()
    def state = Arrays.hashCode(file.bytes).toString()
    def before = imageData.getProperty(MARK)
    def said = "its outlines were imported before"
    if (before == null) {
        def stream = new BufferedInputStream(new FileInputStream(file))
        def found = PathIO.readObjectsFromGeoJSON(file.getName().endsWith(".gz") ? new GZIPInputStream(stream) : stream)
        imageData.getHierarchy().addObjects(found)
        imageData.setProperty(MARK, state)
        entry.saveImageData(imageData)
        said = "${found.size()} outlines"
    } else if (before != state) {
        said = "has outlines of an earlier answer, which stay; to have the new ones, remove " +
            "data/${entry.getID()}/data.qpdata, with all that was drawn there, and run this again"
    }
    imageData.getServer().close()
    return said
}

for (entry in project.getImageList()) {
    def key = entry.getMetadataMap().get("histodict")
    def file = [".geojson", ".geojson.gz"].collect { new File(folder, "${key}${it}") }.find { it.isFile() }
    try {
        println "${entry.getImageName()}: " + (file == null ? "no outlines in ${folder}" : bringIn(entry, file))
    } catch (Exception error) {
        println "${entry.getImageName()}: nothing was imported (${error.getMessage()})"
    }
}
project.syncChanges()
